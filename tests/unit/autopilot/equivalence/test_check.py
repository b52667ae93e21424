"""Only recurrent layers with dropout between them draw in cuDNN, and a check leaves its tuning off."""

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.check import untuned_kernels
from samestep.autopilot.equivalence.refusal import draws_in_cudnn


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (nn.LSTM(2, 2, 2, dropout=0.1), True),
        (nn.GRU(2, 2, 2, dropout=0.1).eval(), False),
        (nn.LSTM(2, 2, 2), False),
        (nn.Dropout(0.1), False),
    ],
)
def test_layers_that_draw(module, draws):
    assert draws_in_cudnn(module) == draws
    with torch.backends.cudnn.flags(enabled=False):
        assert not draws_in_cudnn(module)


@pytest.mark.parametrize(("device", "tuned"), [("cuda", False), ("cpu", True)])
def test_cudnn_tunes_nothing_for_the_shapes_of_a_check(device, tuned):
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        with untuned_kernels(torch.device(device)):
            assert torch.backends.cudnn.benchmark == tuned
        assert torch.backends.cudnn.benchmark
