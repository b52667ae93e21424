"""A worker that runs out of memory ends the run, even if the script retries."""

import pytest
import torch
from torch import nn

from samestep.autopilot.script.call_account import Account
from samestep.autopilot.split.gradients import Gradients
from samestep.autopilot.split_calls import CallSplitter, intercepted_calls, splitting_calls
from samestep.base.errors import UsageError
from samestep.ranks.world.thread_world import run_ranks


class Hungry(nn.Linear):
    def forward(self, x):
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().forward(x)


def retried(world):
    """Halve a batch that does not fit, as many scripts do."""
    model, gradients = Hungry(3, 1), Gradients(world)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    try:
        with splitting_calls(CallSplitter(world, gradients, Account())):
            model(torch.ones(4, 3))
            try:
                model(torch.ones(16, 3))
            except RuntimeError:
                model(torch.ones(8, 3))
    finally:
        gradients.detach()


def test_a_retry_is_refused_with_the_call_and_the_size():
    with (
        intercepted_calls(),
        pytest.raises(UsageError, match=r"call of Hungry .*Tried to allocate 2 GiB"),
    ):
        run_ranks(retried, 2)
