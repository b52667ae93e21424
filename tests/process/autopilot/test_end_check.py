"""Ranks are compared when the script has ended; a rank that failed or never arrives ends the wait."""

import random
import time

import numpy as np
import pytest
import torch
from samestep.autopilot.end_check import _ALL_ENDED, _ENDED, _FAILED, EndCheck
from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot.script.call_account import Account
from samestep.autopilot.split.gradients import Gradients
from samestep.base.errors import OutOfStep
from support.device_generator import install


def changed(model, account, kind):
    """Change one part of a rank's state."""
    if kind == "bits":
        model.weight.data[0, 1] += 1e-7
    elif kind == "type":
        model.bias.data = model.bias.data.double()
    elif kind == "shape":
        model.bias.data = model.bias.data[:1].clone()
    elif kind == "memory":
        model.weight.data.untyped_storage().resize_(0)
    elif kind == "backward passes":
        account.backwards += 1
    elif kind == "torch":
        torch.rand(1)
    elif kind == "Python":
        random.random()
    elif kind == "NumPy":
        np.random.rand()
    elif kind == "torch (cuda)":
        torch.get_device_module("cuda").draw()


class OnDevice:
    """A world whose ranks have a GPU."""

    device = torch.device("cuda")

    def __init__(self, world):
        self._world = world

    def __getattr__(self, name):
        return getattr(self._world, name)


def ended(world, kind, on=1, timeout_s=60.0, code=0):
    """End a script whose state differs on rank `on`; return the error and how long it took."""
    account, gradients = Account(backwards=4), Gradients(world)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    model = torch.nn.Linear(3, 2)
    gradients.follow(model.parameters(), names=["Net.weight", "Net.bias"])
    found, began, patch = "", time.monotonic(), pytest.MonkeyPatch()
    if kind == "torch (cuda)":
        install(patch)
    try:
        if on in (world.place.rank, None):
            changed(model, account, kind)
        if not (kind == "absent" and world.place.rank == on):
            seen = OnDevice(world) if kind == "torch (cuda)" else world
            check = EndCheck(seen, gradients, account, timeout_s=timeout_s)
            check.run(code if world.place.rank == on else 0)
    except OutOfStep as error:
        found = str(error)
    took = time.monotonic() - began
    patch.undo()
    gradients.detach()
    world.barrier()
    if world.place.is_main:
        store = _get_default_store()
        for key in (_ENDED, _ALL_ENDED, _FAILED, *(f"{_ENDED}/{rank}" for rank in range(world.place.size))):
            store.delete_key(key)
    world.barrier()
    return found, took


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("bits", "Net.weight"),
        ("type", "float64"),
        ("shape", "[1]"),
        ("memory", "Net.weight"),
        ("backward passes", "rank 1: 5"),
        ("torch", "of torch are"),
        ("torch (cuda)", "of torch (cuda) are"),
        ("Python", "of Python are"),
        ("NumPy", "of NumPy are"),
    ],
)
def test_a_rank_that_differs_at_the_end_is_an_error_on_all(processes, kind, named):
    for found, _ in processes.run(ended, 2, kind):
        assert named in found
        assert "rank 1" in found


@pytest.mark.parametrize("kind", ["nothing", "type", "shape", "memory", "torch", "Python", "NumPy"])
def test_equal_changes_on_all_ranks_are_no_difference(processes, kind):
    assert [found for found, _ in processes.run(ended, 2, kind, None)] == ["", ""]


def test_a_rank_that_does_not_arrive_is_named_after_the_timeout(processes):
    (found, took), (nothing, _) = processes.run(ended, 2, "absent", 1, 0.2)

    assert "rank 1 did not reach the end" in found
    assert took < 10
    assert nothing == ""


def test_a_rank_that_failed_ends_the_wait_of_the_others_without_an_error(processes):
    """Its own error is that of the run."""
    ranks = processes.run(ended, 2, "bits", 1, 60.0, 3)

    assert [found for found, _ in ranks] == ["", ""]
    assert max(took for _, took in ranks) < 10
