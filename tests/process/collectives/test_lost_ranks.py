"""A rank that is killed inside a schedule is named by those that talk to it; nobody waits for ever."""

import os
import signal

import pytest
import torch

from samestep.collectives.agree import steps
from samestep.collectives.algorithms import ALL_REDUCE
from samestep.testing.counting import CountingWorld
from samestep.testing.ranks import on_processes


class Doomed(CountingWorld):
    """A world whose rank is killed when it has agreed with the others, and is about to send or receive."""

    def exchange(self, *args, **options):
        if self.messages == steps(self.place.size):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().exchange(*args, **options)


def killed(name):
    def task(world):
        world = Doomed(world) if world.place.rank == 1 else world
        ALL_REDUCE[name](world, torch.ones(1000), "sum")

    return task


@pytest.mark.parametrize("name", ["naive", "tree", "ring", "halving_doubling"])
def test_a_killed_rank_is_named(name):
    ((first, second, third),) = on_processes([killed(name)], 3, timeout_s=20)

    assert first.error.startswith("PeerLost: rank ")
    assert "PeerLost: rank 1 is lost to rank" in first.error + third.error
    assert second.error == "the process died"
