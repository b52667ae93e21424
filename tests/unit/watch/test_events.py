"""Which calls of modules are heard of."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from samestep.watch import events
from samestep.watch.events import Listener, subscribed


class Calls(Listener):
    """Keeps what is called."""

    def __init__(self):
        self.modules = []

    def call(self, module, given, *, is_training):
        self.modules.append(module)
        return nullcontext()


class Empty(nn.Module):
    """Has parameters, and a length that has nothing to do with them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def __len__(self):
        return 0

    def forward(self, inputs, module=None):
        return self.layer(inputs)


class Holding(nn.Module):
    """Has a part that has this module as a part, and maybe one with parameters."""

    def __init__(self, part):
        super().__init__()
        self.above = nn.Identity()
        self.above.below = self
        self.part = part

    def forward(self, inputs):
        return inputs if self.part is None else self.part(inputs)


class Telling(nn.Module):
    """Keeps its parts where torch does not look, and tells of their parameters itself."""

    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(2, 1), nn.Linear(2, 1)]

    def parameters(self, recurse=True):
        for part in self.parts:
            yield from part.parameters(recurse)

    def forward(self, inputs):
        return sum(part(inputs) for part in self.parts)


@pytest.mark.parametrize(
    ("module", "heard"),
    [
        (Empty(), True),
        (nn.Sequential(Empty()), True),
        (Holding(Empty()), True),
        (Holding(None), False),
        (Telling(), True),
        (nn.ReLU(), False),
    ],
)
def test_a_call_is_heard_of_where_some_part_has_a_parameter(module, heard):
    calls = Calls()
    with subscribed(calls):
        module(torch.ones(1, 2))
    assert calls.modules == ([module] if heard else [])


def test_an_argument_may_have_any_name():
    with subscribed(Listener()):
        assert Empty()(torch.ones(1, 2), module="any").shape == (1, 1)


def test_what_a_compiler_cannot_follow_is_called_only_for_a_listener_with_a_place(monkeypatch):
    def refused():
        raise AssertionError

    monkeypatch.setattr(events, "getpid", refused)
    monkeypatch.setattr(events, "get_ident", refused)
    model = Empty()
    with subscribed(Listener()):
        model(torch.ones(1, 2)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
