"""The state of a module is restored after a call."""

import pytest
import torch
from torch import nn

from samestep.autopilot.state.saved_state import SavedState


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_the_statistics_of_a_scripted_module_are_restored():
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    before = SavedState(module)
    kept = before.buffers()
    module(torch.ones(4, 3))
    assert not torch.equal(module[1].running_mean, kept["1.running_mean"])

    before.restore()

    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, kept[name])
