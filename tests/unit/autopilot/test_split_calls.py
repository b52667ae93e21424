"""A call that has no samples has a reason by which the user can give it some."""

import numpy as np
import pytest
import torch
from torch import nn

from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split_calls import NO_TENSORS, OF_ARRAYS, ModuleCall


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(({"ids": np.ones(3)},), OF_ARRAYS), ((torch.ones(()), "text"), NO_TENSORS), ((), NO_TENSORS)],
)
def test_the_reason_names_numpy_arrays(arguments, why):
    call = ModuleCall(nn.Module.__call__, nn.Linear(3, 2), CallArguments(arguments, {}))
    assert call.without_samples() == why
