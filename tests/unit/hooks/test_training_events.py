"""Calls of modules that have parameters are reported."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from samestep.hooks import training_events
from samestep.hooks.training_events import Listener, subscribed


class Calls(Listener):
    """A listener that records the called modules."""

    def __init__(self):
        self.modules = []

    def call(self, module, inputs, *, is_training):
        self.modules.append(module)
        return nullcontext()


class Empty(nn.Module):
    """A module with parameters and a length of 0."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def __len__(self):
        return 0

    def forward(self, inputs, module=None):
        return self.layer(inputs)


class Holding(nn.Module):
    """A module with a cycle of parts, and possibly a part with parameters."""

    def __init__(self, part):
        super().__init__()
        self.above = nn.Identity()
        self.above.below = self
        self.part = part

    def forward(self, inputs):
        return inputs if self.part is None else self.part(inputs)


class Overriding(nn.Module):
    """A module with parts in a list, which overrides `parameters`."""

    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(2, 1), nn.Linear(2, 1)]

    def parameters(self, recurse=True):
        for part in self.parts:
            yield from part.parameters(recurse)

    def forward(self, inputs):
        return sum(part(inputs) for part in self.parts)


@pytest.mark.parametrize(
    ("module", "is_reported"),
    [
        (Empty(), True),
        (nn.Sequential(Empty()), True),
        (Holding(Empty()), True),
        (Holding(None), False),
        (Overriding(), True),
        (nn.ReLU(), False),
    ],
)
def test_a_call_is_reported_if_any_submodule_has_a_parameter(module, is_reported):
    calls = Calls()
    with subscribed(calls):
        module(torch.ones(1, 2))
    assert calls.modules == ([module] if is_reported else [])


def test_a_forward_argument_named_module_is_accepted():
    with subscribed(Listener()):
        assert Empty()(torch.ones(1, 2), module="any").shape == (1, 1)


def test_thread_ids_are_read_only_for_a_listener_with_a_thread(monkeypatch):
    def refused():
        raise AssertionError

    monkeypatch.setattr(training_events, "getpid", refused)
    monkeypatch.setattr(training_events, "get_ident", refused)
    model = Empty()
    with subscribed(Listener()):
        model(torch.ones(1, 2)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
