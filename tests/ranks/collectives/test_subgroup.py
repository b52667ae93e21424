"""A subgroup is a world of some ranks."""

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.ranks.world.operation import OPS
from samestep.ranks.world.thread_world import run_ranks
from samestep_lab.collectives.algorithms import ALL_REDUCE
from samestep_lab.testing import check_all_gather, check_all_reduce, check_broadcast
from support.subgroup import Subgroup


def test_two_groups_run_different_collectives_at_once():
    def fn(world):
        me = world.place.rank
        if me == 4:
            return None
        group = Subgroup(world, [3, 1] if me % 2 else [0, 2])
        tensor = torch.tensor([float(me)])
        group.all_reduce(tensor)
        if me % 2:
            group.barrier()
        last = torch.tensor(me)
        group.broadcast(last, src=1)
        group.all_reduce_later(last).wait()
        return (
            group.place.rank,
            tensor.item(),
            last.item(),
            [one.item() for one in group.all_gather(torch.tensor(me))],
            group.all_gather_objects({"rank": me}),
            group.sum(me),
        )

    even = (2.0, 4, [0, 2], [{"rank": 0}, {"rank": 2}], 2.0)
    odd = (4.0, 2, [3, 1], [{"rank": 3}, {"rank": 1}], 4.0)
    assert run_ranks(fn, 5) == [(0, *even), (1, *odd), (1, *even), (0, *odd), None]


def reversed_group(world):
    return Subgroup(world, list(reversed(range(world.place.size))))


def all_reduce(tensor, world, op):
    reversed_group(world).all_reduce(tensor, op=op)


def broadcast(tensor, world, src):
    reversed_group(world).broadcast(tensor, src=world.place.size - 1 - src)


def all_gather(tensor, world):
    return reversed_group(world).all_gather(tensor)[::-1]


def test_its_collectives_conform():
    check_all_reduce(all_reduce, [1, 3, 4], ops=OPS)
    check_broadcast(broadcast, [1, 3])
    check_all_gather(all_gather, [1, 3])


@pytest.mark.parametrize("name", ["naive", "tree", "ring", "halving_doubling"])
def test_each_algorithm_takes_a_subgroup(name):
    def fn(world):
        tensor = torch.full((5,), float(world.place.rank))
        if world.place.rank != 1:
            ALL_REDUCE[name](Subgroup(world, [3, 0, 2]), tensor, "max")
        return tensor.tolist()

    assert run_ranks(fn, 4) == [[3.0] * 5, [1.0] * 5, [3.0] * 5, [3.0] * 5]


@pytest.mark.parametrize("ranks", [[1], [0, 0], [0, 2]])
def test_an_invalid_subgroup_is_refused_with_its_ranks(ranks):
    with pytest.raises(UsageError, match=rf"rank 0 of 2 .*\[{', '.join(map(str, ranks))}\]"):
        run_ranks(lambda world: Subgroup(world, ranks) if world.place.rank == 0 else None, 2)
