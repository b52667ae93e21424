"""A clock does not change what it measures: ranks communicate as often with it as without it."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.step_clock import ScriptClock
from samestep.ranks.hang.flight_recorder import OWN_COLLECTIVES

STEPS = 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def with_ddp():
    return DistributedDataParallel(network())


def with_fsdp():
    model = network()
    fully_shard(model)
    return model


class Counted:
    """Counts the collectives of a rank in shared memory and, by their sequence numbers, in process groups."""

    def __init__(self):
        self._in_memory = 0

    def subscribed(self):
        return OWN_COLLECTIVES.subscribed(self._count)

    def _count(self, _):
        self._in_memory += 1
        return nullcontext()

    def so_far(self):
        return self._in_memory + sum(group._get_sequence_number_for_group() for group in c10d._world.pg_map)


def num_collectives(world, folder, made, *, clocks):
    """Return the number of this rank's collectives in a training."""
    clocking = ClockOptions(folder=Path(folder), warm_up=1)
    counted = Counted()
    with counted.subscribed():
        before = counted.so_far()
        if clocks:
            file = ClockFile(clocking, world.place, "native")
            clock = ScriptClock(file, clocking, stop=lambda: None)
        with clock.attached() if clocks else nullcontext():
            model = made()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(STEPS):
                model(torch.ones(4, 3)).square().mean().backward()
                optimizer.step()
        if clocks:
            clock.end("end")
        return counted.so_far() - before


def native(world, folder, made):
    """Return the number of this rank's collectives without a clock, and with one."""
    return [num_collectives(world, folder, made, clocks=clocks) for clocks in (False, True)]


@pytest.mark.parametrize("made", [with_ddp, with_fsdp])
def test_a_clock_adds_no_collectives(processes, tmp_path, made):
    for without, under in processes.run(native, 2, str(tmp_path), made):
        assert without >= STEPS
        assert under == without
    lines = (tmp_path / "rank-1.jsonl").read_text().splitlines()
    assert len(lines) == 1 + (STEPS - 1) + 1  # it did clock
