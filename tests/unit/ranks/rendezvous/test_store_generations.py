"""Ranks that meet in a store where others have met before them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, PrefixStore

from samestep.base.errors import PeerLost
from samestep.base.place import Place
from samestep.ranks.rendezvous.store import generation_name

SIZE = 3


def place(rank):
    return Place(rank=rank, size=SIZE, local_rank=0, local_size=1, node=rank, nodes=SIZE)


def names(store, *ranks, timeout_s=10.0):
    """Return what each of `ranks` comes to, all at once."""
    # Each has a client of its own, as processes have.
    with ThreadPoolExecutor(len(ranks)) as pool:
        asked = [
            pool.submit(generation_name, PrefixStore("p", store), place(rank), timeout_s=timeout_s)
            for rank in ranks
        ]
        return [one.result() for one in asked]


def test_living_ranks_agree_and_never_on_the_name_of_dead_ones():
    store = HashStore()
    lives = [names(store, *ranks) for ranks in ((0, 1, 2), (2, 1, 0), (1, 0, 2))]

    assert all(len(set(life)) == 1 for life in lives)
    assert len({life[0] for life in lives}) == 3


def test_a_word_that_a_dead_rank_has_left_is_answered_and_not_counted():
    store = HashStore()
    with pytest.raises(PeerLost, match="rank 0 of 3 did not come"):
        names(store, 1, timeout_s=0.05)

    with pytest.raises(PeerLost, match="rank 1 of 3 did not come"):
        names(store, 0, 2, timeout_s=0.3)
    assert len(set(names(store, 0, 1, 2))) == 1
