"""A rank or a size that a script gives to ``init_process_group`` is compared with those of the others."""

from dataclasses import replace

import pytest
from torch.distributed import HashStore

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.ranks.world.torch_rendezvous import _check_claim, _check_size

SECOND = Place(rank=1, size=3, local_rank=1, local_size=3, node=0, nodes=1, launcher="samestep")


def refused(claims):
    """Return the ranks whose claims are refused."""
    store = HashStore()
    for rank in range(len(claims)):  # as if all had claimed before the first one reads
        store.set(f"samestep/claimed-rank/{rank}", str(claims[rank]))
    return [rank for rank, claim in enumerate(claims) if _is_refused(store, rank, claim)]


def _is_refused(store, rank, claim):
    try:
        _check_claim(store, replace(SECOND, rank=rank, local_rank=rank), claim)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("claims", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_each_permutation_of_the_ranks_is_accepted(claims):
    assert refused(claims) == []


@pytest.mark.parametrize(
    ("claims", "ranks"), [((0, 0, 2), [1]), ((0, 0, 0), [1, 2]), ((1, 1, 2), [0]), ((1, 0, 0), [1, 2])]
)
def test_a_rank_that_several_processes_claim_is_refused(claims, ranks):
    assert refused(claims) == ranks


def test_a_group_of_more_ranks_than_the_job_has_is_refused():
    with pytest.raises(UsageError, match=r"rank 1 .*world_size=4.*WORLD_SIZE=3"):
        _check_size(SECOND, 4)


@pytest.mark.parametrize("size", [1, 3, None])
def test_the_jobs_size_and_a_smaller_one_are_accepted(size):
    _check_size(SECOND, size)
