"""Ranks agree on a new generation in a store that earlier ranks have used."""

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
    """Return the generation names of `ranks`, found at the same time."""
    # Each has a client of its own, as processes have.
    with ThreadPoolExecutor(len(ranks)) as pool:
        asked = [
            pool.submit(generation_name, PrefixStore("p", store), place(rank), timeout_s=timeout_s)
            for rank in ranks
        ]
        return [one.result() for one in asked]


def test_ranks_agree_on_a_name_that_no_earlier_generation_had():
    store = HashStore()
    generations = [names(store, *ranks) for ranks in ((0, 1, 2), (2, 1, 0), (1, 0, 2))]

    assert all(len(set(generation)) == 1 for generation in generations)
    assert len({generation[0] for generation in generations}) == 3


def test_a_message_of_an_ended_rank_does_not_count_as_its_arrival():
    store = HashStore()
    with pytest.raises(PeerLost, match="rank 0 of 3 did not come"):
        names(store, 1, timeout_s=0.05)

    with pytest.raises(PeerLost, match="rank 1 of 3 did not come"):
        names(store, 0, 2, timeout_s=0.3)
    assert len(set(names(store, 0, 1, 2))) == 1
