"""Ranks compare the values that the slices of a call write into a tensor of the module."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.slices import WrittenTensors
from samestep.autopilot.split.call_plans import SplitPlan
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.base.errors import UsageError
from samestep.ranks.world.thread_world import run_ranks


@pytest.mark.parametrize("differs", [False, True])
def test_values_that_are_written_through_data_are_compared(differs):
    """Only this finds a comparison by versions alone, which such a write does not change."""

    def written(world):
        module = nn.Module()
        module.register_buffer("bias", torch.ones(3))
        plan = SplitPlan({(0, 0): 0}, {}, sides=(), draws=None, rewrites=True)
        tensors = WrittenTensors(module, plan)
        module.bias.data.mul_(1 + world.place.rank * differs)
        with pytest.raises(UsageError) if differs else nullcontext():
            tensors.agree(BatchSplit(world, 4))

    run_ranks(written, 2)
