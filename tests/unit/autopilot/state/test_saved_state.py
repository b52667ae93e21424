"""The state of a module is restored after a call."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from samestep.autopilot.state.saved_state import SavedState


class Instances(OrderedDict):
    """A table of classes that returns instances, as that of the activations of Transformers."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


class Chooses(nn.Module):
    """Chooses its activation from a table."""

    def __init__(self):
        super().__init__()
        self.table = Instances(tanh=nn.Tanh, relu=nn.ReLU)
        self.table.move_to_end("tanh")


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


def test_a_table_that_returns_other_values_than_it_stores_is_restored():
    module = Chooses()
    before = SavedState(module)
    module.table["gelu"] = nn.GELU
    del module.table["tanh"]

    before.restore()

    assert list(OrderedDict.items(module.table)) == [("relu", nn.ReLU), ("tanh", nn.Tanh)]
    assert isinstance(module.table["tanh"], nn.Tanh)
