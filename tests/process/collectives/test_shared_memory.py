"""Collectives through shared memory give what those of the process group give, with equal bits."""

import re
import subprocess
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from samestep.base.errors import OutOfStep, PeerLost, UsageError
from samestep.ranks.collectives import semaphores, shared_memory
from samestep.ranks.collectives.semaphores import Semaphores, own_process
from samestep.ranks.collectives.shared_memory import FILE_SYSTEM, PIECE, SMALL, OneHostWorld, on_one_host
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep_lab.testing.checks import CountingWorld
from support.subgroup import Subgroup

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
SIZES = [
    0,
    1,
    7,
    *(SMALL // 4 // ranks + more for ranks in (2, 3) for more in (0, 1)),
    PIECE // 4,
    PIECE // 4 + 3,
    3 * PIECE // 8 + 5,
]


def tensor_of(rank, count, dtype):
    drawn = torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(rank))
    return drawn.to(dtype) / 8 if dtype.is_floating_point else drawn.to(dtype)


def everything(world):
    """Call all collectives with all sizes and types; return the sums."""
    fast = on_one_host(world)
    assert isinstance(fast, OneHostWorld)
    rank, size = world.place.rank, world.place.size
    digest = []
    for dtype in DTYPES:
        for count in SIZES:
            every = [tensor_of(one, count, dtype) for one in range(size)]
            gathered = fast.all_gather(every[rank])
            assert all(torch.equal(a, b) for a, b in zip(gathered, every, strict=True)), (dtype, count)
            total = every[rank].clone()
            fast.all_reduce(total)
            exact = sum((one.double() for one in every), torch.zeros(count, dtype=torch.float64))
            assert torch.equal(total.double(), exact.to(dtype).double()), (dtype, count)
            digest.append(total)
            if dtype.is_floating_point:
                average = every[rank].clone()
                fast.average_later(average).wait()
                torch.testing.assert_close(
                    average.double(), exact / size, rtol=4 * torch.finfo(dtype).eps, atol=1e-6
                )
                digest.append(average)
            for op, of in (("min", torch.amin), ("max", torch.amax)):
                reduced = every[rank].clone()
                fast.all_reduce(reduced, op=op)
                assert torch.equal(reduced, of(torch.stack(every), 0)), (dtype, count, op)
            for source in range(size):
                copy = every[rank].clone()
                fast.broadcast(copy, src=source)
                assert torch.equal(copy, every[source])
    return digest


@pytest.mark.parametrize("size", [2, 3])
def test_all_types_sizes_and_operations_are_correct(processes, size):
    first, *others = processes.run(everything, size)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def sums_and_rows_on_main(world):
    """Call the collectives whose result rank 0 has, with all sizes and types, between others."""
    memory = on_one_host(world)._memory
    rank, size = world.place.rank, world.place.size
    for dtype in DTYPES:
        for count in SIZES:
            every = [tensor_of(one, count, dtype) for one in range(size)]
            before = every[rank].clone()
            totals = memory.sum_on_main([every[rank][:2], every[rank], every[rank][:3], every[rank]])
            assert torch.equal(every[rank], before)
            assert (totals is None) == (rank > 0)
            exact = sum((one.double() for one in every), torch.zeros(count, dtype=torch.float64))
            for total, whole in zip(totals or [], [exact[:2], exact, exact[:3], exact], strict=False):
                assert not total._is_view()
                assert torch.equal(total.double(), whole.to(dtype).double()), (dtype, count)
            memory.barrier()
            parts = [one[: count - number if count > number else 0] for number, one in enumerate(every)]
            targets = None if rank else [torch.full_like(part, 3) for part in parts]
            memory.gather_on_main(parts[rank], targets, count)
            for target, part in zip(targets or [], parts, strict=False):
                assert torch.equal(target, part), (dtype, count)


@pytest.mark.parametrize("size", [2, 3])
def test_rank_0_gets_sums_and_parts_of_unequal_lengths(processes, size):
    """Only this finds a large sum that is written into the gradient of a rank, or a part of a last piece."""
    processes.run(sums_and_rows_on_main, size)


def strided(world):
    fast = on_one_host(world)
    matrix = torch.arange(12.0).view(3, 4) + world.place.rank
    columns = matrix[:, 1:3]
    fast.all_reduce(columns)
    parameter = torch.nn.Parameter(torch.ones(2))
    fast.all_reduce(parameter.data)
    pending = fast.all_reduce_later(parameter.data)
    pending.wait()
    conjugate = torch.tensor([1 + 2j, 3.0]).conj()
    fast.all_reduce(conjugate)
    assert conjugate.tolist() == [2 - 4j, 6]
    with pytest.raises(UsageError, match="there is no rank -1 among 2"):
        fast.broadcast(matrix, src=-1)
    fast.barrier()
    return matrix, parameter.data


def test_tensors_that_are_not_contiguous_are_reduced_in_place(processes):
    for rank, (matrix, parameter) in enumerate(processes.run(strided, 2)):
        alone = torch.arange(12.0).view(3, 4) + rank
        summed = 2 * torch.arange(12.0).view(3, 4) + 1
        assert torch.equal(matrix[:, 1:3], summed[:, 1:3])
        assert torch.equal(matrix[:, 0], alone[:, 0])
        assert torch.equal(parameter, torch.full((2,), 4.0))


def names(world, folder):
    """Return the names in the file system while the memory is allocated, and after all ranks have it."""
    made, seen = Semaphores.__init__, []

    def listed(*_, **__):
        seen.append([path.name for path in Path(folder).iterdir()])

    with (
        patch.object(shared_memory, "FILE_SYSTEM", Path(folder)),
        patch.object(Semaphores, "__init__", lambda *given, **more: (listed(), made(*given, **more))[1]),
    ):
        fast = on_one_host(world)
    assert isinstance(fast, OneHostWorld)
    listed()
    return seen


def test_the_memory_has_no_name_in_the_file_system(processes):
    with tempfile.TemporaryDirectory(dir=FILE_SYSTEM) as folder:
        assert processes.run(names, 2, folder) == [[[], []]] * 2


def wait_for_missing_rank(world):
    fast = on_one_host(world, timeout_s=0.3)
    if world.place.rank == 0:
        with pytest.raises(PeerLost, match=r"rank 1 did not come within 0\.3 s"):
            fast.barrier()
    world.barrier()


def test_a_missing_rank_is_named(processes):
    processes.run(wait_for_missing_rank, 2)


def wait_in_a_group(world):
    """Wait in a group of a job with a short timeout for a rank that does not arrive."""
    with patch.object(ProcessGroupWorld, "timeout_s", 0.3):
        if world.place.rank < 2:
            group = Subgroup(CountingWorld(world), [1, 0])
            assert group.timeout_s == 0.3
            fast = on_one_host(group)
            if group.place.rank == 0:
                with pytest.raises(PeerLost, match=r"rank 1 did not come within 0\.3 s"):
                    fast.barrier()
    world.barrier()


def test_a_group_has_the_timeout_of_its_job(processes):
    processes.run(wait_in_a_group, 3)


CALLS = {
    "shape": lambda world, ones: world.all_reduce(ones),
    "dtype": lambda world, ones: world.all_reduce(ones.double()),
    "operation": lambda world, ones: world.all_reduce(ones, op="max"),
    "collective": lambda world, _: world.barrier(),
    "truth": lambda world, ones: world.all_reduce(ones.bool(), op="max"),
    "layout": lambda world, ones: world.all_reduce_later(ones.to_sparse()),
    "source": lambda world, ones: world.broadcast(ones.bool(), src=1),
    "empty": lambda world, ones: world.all_gather(ones[:0]),
}
MESSAGES = {
    "shape": r"all_reduce\(sum\) of float32 \[40000\]",
    "dtype": r"all_reduce\(sum\) of float64 \[7\]",
    "operation": r"all_reduce\(max\) of float32 \[7\]",
    "collective": "barrier of",
    "truth": r"all_reduce\(max\) by the back end of bool \[7\]",
    "layout": r"all_reduce\(sum\) by the back end of float32 \[7\]",
    "source": r"broadcast from 1 by the back end of bool \[7\]",
    "empty": r"all_gather of float32 \[0\]",
}


def differing(world, which):
    """Make another call than the other ranks, then the same; return the error's message and the sum."""
    fast, rank = on_one_host(world, timeout_s=5), world.place.rank
    ones = torch.ones(40_000 if rank == 1 and which == "shape" else 7)
    with pytest.raises(OutOfStep) as refused:
        (CALLS[which] if rank == 1 else CALLS["shape"])(fast, ones)
    fast.all_reduce(total := torch.ones(100_000))
    return str(refused.value), total.unique().tolist()


@pytest.mark.parametrize("which", CALLS)
def test_an_error_names_both_of_two_different_calls_and_the_next_call_succeeds(processes, which):
    for rank, (message, total) in enumerate(processes.run(differing, 3, which)):
        ours, theirs = (MESSAGES[which], r"all_reduce\(sum\) of float32 \[7\]")
        first, second = (ours, theirs) if rank == 1 else (theirs, ours)
        other = 0 if rank == 1 else 1
        assert re.search(f"rank {rank} calls {first}.*, rank {other} calls {second}", message), message
        assert total == [3.0]


def stopped(world):
    """Stop in the middle of a large tensor, as with SIGSTOP, until the others have given up."""
    fast = on_one_host(world, timeout_s=0.3)
    large = torch.ones(4 * PIECE // 4)
    if world.place.rank == 1:
        handover, made = fast._memory._handover, iter(range(100))
        fast._memory._handover = lambda **turn: world.barrier() if next(made) == 3 else handover(**turn)
        with pytest.raises(PeerLost):
            fast.all_reduce(large)
        return
    with pytest.raises(PeerLost, match=r"rank 1 did not come within 0\.3 s"):
        fast.all_reduce(large)
    world.barrier()


def test_a_rank_that_stops_within_a_collective_is_named(processes):
    processes.run(stopped, 2)


def wait_for_dead_rank(world):
    """Wait for a slow rank, and for the last one, whose process seems to have ended."""
    rank, size = world.place.rank, world.place.size
    with patch.object(shared_memory, "own_process", ended if rank == size - 1 else own_process):
        fast = on_one_host(world, timeout_s=30)
    if rank == 0:
        with pytest.raises(PeerLost, match=f"rank {size - 1} has died"):
            fast.barrier()
    world.barrier()


def ended():
    with subprocess.Popen(["true"]) as child:
        child.wait()
    return child.pid, own_process()[1]


@pytest.mark.parametrize("size", [2, 3])
def test_a_dead_rank_is_named_before_the_timeout(processes, size):
    processes.run(wait_for_dead_rank, size)


def wait_for_arrived_rank(world):
    """Wait for a rank that ended after it had arrived, and for one that arrives late."""
    rank, size = world.place.rank, world.place.size
    with patch.object(shared_memory, "own_process", ended if rank == size - 1 else own_process):
        fast = on_one_host(world, timeout_s=30)
    if rank == size - 1:
        fast._memory._semaphores.post()
    world.barrier()
    if rank == 1:
        time.sleep(4 * semaphores._SLICE_S)  # for so long that rank 0 polls several times
    if rank < size - 1:
        fast._memory._semaphores.post()
        fast._memory._semaphores.wait()
    world.barrier()


def test_a_rank_that_arrived_before_it_died_is_not_missing(processes):
    processes.run(wait_for_arrived_rank, 3)
