"""Schedules are correct between real processes, over a process group and in shared memory."""

from unittest.mock import patch

import pytest
import torch

from samestep.base.errors import OutOfStep
from samestep.ranks.collectives.consistency_check import steps
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep_lab.collectives import executor
from samestep_lab.collectives.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from samestep_lab.collectives.all_reduce import NAIVE, RING, TREE
from samestep_lab.collectives.halving_doubling import HALVING_DOUBLING
from samestep_lab.collectives.schedule import runs
from samestep_lab.testing.checks import CountingWorld

COUNTS = [0, 1, 5]
LONG = (1 << 19) + 3
SCHEDULES = {each.name: each for each in (NAIVE, TREE, RING, HALVING_DOUBLING)}
DTYPES = [torch.float32, torch.bfloat16, torch.int16, torch.bool]


def tensor_of(rank, count, dtype):
    return torch.randint(1, 3, (count,), generator=torch.Generator().manual_seed(rank)).to(dtype)


def means_in_half_precision(world):
    near, means = on_one_host(world), []
    for all_reduce in ALL_REDUCE.values():
        tensor = torch.full((5,), 40000.0, dtype=torch.float16)  # two of which do not fit
        all_reduce(near, tensor, "mean")
        means.append(tensor.unique().tolist())
    return means


def test_a_mean_that_half_precision_can_represent_does_not_overflow(processes):
    assert processes.run(means_in_half_precision, 3) == [[[40000.0]] * len(ALL_REDUCE)] * 3


def in_many_pieces(world):
    """Return the wrong results of tensors that are sent in many pieces."""
    wrong = []
    rank, size = world.place.rank, world.place.size
    with patch.object(executor, "PIECE", 2048):
        for dtype in (torch.float32, torch.bfloat16):
            every = [tensor_of(one, 10_003, dtype) for one in range(size)]
            for each in SCHEDULES.values():
                got = every[rank].clone()
                each(world, got, "sum")
                exact = torch.stack(every).double().sum(0)
                wrong += [] if torch.equal(got.double(), exact) else [(each.name, dtype)]
    return wrong


def test_pieces_of_a_tensor_stay_in_order(processes):
    assert processes.run(in_many_pieces, 3) == [[]] * 3


def the_others(world):
    world, wrong = on_one_host(world), []
    rank, size = world.place.rank, world.place.size
    for dtype in DTYPES:
        for count in [*COUNTS, LONG] if dtype == torch.float32 else COUNTS:
            every = [tensor_of(one, size * count, dtype).view(size, count) for one in range(size)]
            for root in range(size):
                for name, broadcast in BROADCAST.items():
                    got = every[rank].clone()
                    if name == "shared_memory" or (name, dtype) == ("native", torch.int16):
                        continue
                    broadcast(world, got, root)
                    wrong += [] if torch.equal(got, every[root]) else [(name, dtype, count, root)]
                gathered = GATHER["tree"](world, every[rank], root) or every
                wrong += [] if torch.equal(torch.stack(gathered), torch.stack(every)) else ["gather"]
                got = SCATTER["tree"](world, every[rank], root)
                wrong += [] if torch.equal(got, every[root][rank]) else ["scatter"]
                got = every[rank].clone()
                REDUCE["tree"](world, got, "max", root)
                exact = torch.stack(every).amax(0) if root == rank else every[rank]
                wrong += [] if torch.equal(got, exact) else ["reduce"]
            got = ALL_GATHER["ring"](world, every[rank])
            wrong += [] if torch.equal(torch.stack(got), torch.stack(every)) else ["all-gather"]
            got = REDUCE_SCATTER["ring"](world, every[rank], "max")
            wrong += [] if torch.equal(got, torch.stack(every).amax(0)[rank]) else ["reduce-scatter"]
    return wrong


def test_the_other_collectives_are_correct(processes):
    assert processes.run(the_others, 3) == [[]] * 3


def one_differs(world, near):
    world = on_one_host(world) if near else world
    tensor = torch.ones(3 + (world.place.rank == 1))
    try:
        ALL_REDUCE["ring"](world, tensor, "sum")
    except OutOfStep as error:
        told = str(error)
    tensor = torch.ones(3)
    ALL_REDUCE["ring"](world, tensor, "sum")
    return told, tensor.tolist()


@pytest.mark.parametrize("near", [False, True])
def test_an_error_names_the_ranks_and_their_calls_and_the_next_call_succeeds(processes, near):
    for told, tensor in processes.run(one_differs, 3, near):
        assert "rank 1 calls all-reduce sum by ring of float32 [4]" in told
        assert "calls all-reduce sum by ring of float32 [3]" in told
        assert tensor == [3.0] * 3


def counted(world, name):
    """Return how many messages an all-reduce sends on this rank, with shared memory and without."""
    plain, shared = CountingWorld(world), CountingWorld(world)
    near = on_one_host(shared)
    assert isinstance(near, OneHostWorld)
    for some in (plain, near):
        tensor = torch.arange(100.0)
        ALL_REDUCE[name](some, tensor, "sum")
        assert tensor.equal(3 * torch.arange(100.0))
    return plain.messages, shared.messages


@pytest.mark.parametrize("name", SCHEDULES)
def test_consistency_checks_in_shared_memory_send_no_messages(processes, name):
    for rank, (plain, shared) in enumerate(processes.run(counted, 3, name)):
        hops = SCHEDULES[name].combine(rank, 3) + SCHEDULES[name].copy(rank, 3)
        sent = sum(1 for hop in hops for _ in runs(hop.send))
        assert shared == sent
        assert plain == sent + steps(3)
