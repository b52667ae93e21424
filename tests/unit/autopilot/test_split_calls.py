"""A call that has no samples has a reason by which the user can give it some."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split_calls import NO_TENSORS, OF_ARRAYS, OF_PACKED, ModuleCall


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (({"ids": np.ones(3)},), OF_ARRAYS),
        ((pack_sequence([torch.ones(2, 3), torch.ones(1, 3)]), None), OF_PACKED),
        ((torch.ones(()), "text"), NO_TENSORS),
        ((), NO_TENSORS),
    ],
)
def test_the_reason_names_what_has_the_samples(arguments, why):
    call = ModuleCall(nn.Module.__call__, nn.Linear(3, 2), CallArguments(arguments, {}))
    assert call.without_samples() == why
