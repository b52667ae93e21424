"""TorchScript compiles functions of a script whose calls of modules are intercepted."""

import pytest
import torch
from torch import nn

from samestep.autopilot.split_calls import intercepted_calls

LAYER = nn.Linear(3, 2)


def doubled(x):
    return 2 * LAYER(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_a_scripted_function_may_call_a_module():
    """TorchScript reads the signature of `nn.Module.__call__`: its replacement has no annotations."""
    x = torch.ones(4, 3)
    with intercepted_calls():
        scripted = torch.jit.script(doubled)
        assert torch.equal(scripted(x), doubled(x))
