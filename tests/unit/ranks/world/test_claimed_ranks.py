"""A rank or a size that a script gives to ``init_process_group`` is compared with the launcher's."""

import pytest

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.ranks.world.torch_rendezvous import _check_claim

SECOND_OF_TWO = Place(rank=1, size=2, local_rank=1, local_size=2, node=0, nodes=1, launcher="samestep")


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 4)])
def test_a_rank_that_another_process_has_or_too_many_ranks_are_refused(rank, size):
    with pytest.raises(UsageError, match=r"rank 1 .*(rank=0|world_size=4).*(RANK=1|WORLD_SIZE=2)"):
        _check_claim(SECOND_OF_TWO, rank, size)


@pytest.mark.parametrize(("rank", "size"), [(1, 2), (0, 1), (1, None)])
def test_the_own_rank_and_a_smaller_group_are_accepted(rank, size):
    _check_claim(SECOND_OF_TWO, rank, size)
