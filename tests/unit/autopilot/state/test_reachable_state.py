"""State that forward reads beside its arguments is a guard, and state that it changes is restored."""

from collections import ChainMap, UserDict, UserList, deque
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from samestep.autopilot.split.guards import changed, counters, plain_attributes, python_state
from samestep.autopilot.state.saved_state import SavedState

FLAG = 0
LOG = {"rows": []}
TENSOR = torch.zeros(2)


@dataclass
class Config:
    rate: float = 0.1


def make(flag):
    return lambda: flag


class Net(nn.Module):
    shared = 0

    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(2, 2), nn.Dropout(0.1)
        self.config, self.names = Config(), SimpleNamespace(mode="a")
        self.sizes, self.stats, self.recent = [4, 8], {"seen": 0}, deque(maxlen=3)
        self.options, self.flags = {"norm": {"center": False}}, {"linear"}
        self.counts, self.plain = np.zeros(2), torch.zeros(2)
        self.box = [0]
        self.hidden = make(self.box[0])

    def keep(self, value, kept=[]):  # noqa: B006 - as scripts have it
        kept.append(value)

    def forward(self, x):
        helper()
        return self.fc(x) * (1 + FLAG)


def helper():
    return LOG, TENSOR


def set_flag():
    global FLAG
    FLAG += 1


CHANGES = {
    "attribute": lambda net: setattr(net, "epoch", 3),
    "configuration": lambda net: setattr(net.config, "rate", 0.2),
    "namespace": lambda net: setattr(net.names, "mode", "b"),
    "short list": lambda net: net.sizes.__setitem__(1, 16),
    "dict": lambda net: net.stats.__setitem__("seen", 5),
    "nested dict": lambda net: net.options["norm"].__setitem__("center", True),
    "set": lambda net: net.flags.add("center"),
    "dropout": lambda net: setattr(net.drop, "p", 0.5),
    "mode of a submodule": lambda net: net.drop.eval(),
    "frozen parameter": lambda net: net.fc.weight.requires_grad_(False),
    "class": lambda net: setattr(Net, "shared", 1),
    "global": lambda net: set_flag(),
}


@pytest.fixture
def net():
    global FLAG
    yield Net()
    FLAG, Net.shared = 0, 0
    LOG["rows"] = []
    TENSOR.zero_()


@pytest.mark.parametrize("change", CHANGES)
def test_reachable_state_is_a_guard(net, change):
    before = plain_attributes(net)
    CHANGES[change](net)
    assert changed(before, plain_attributes(net))


class Table(dict):
    """A dict that may have fields beside its items."""


class Rows(list):
    """A list that may have fields beside its elements."""


class Scale:
    def __init__(self):
        self.rate = 1.0

    def apply(self, x):
        return self.rate * x


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rate = nn.BatchNorm1d(2), 1.0


def with_keyword(*, box=(1.0,)):
    return box


def marked():
    return marked.rate


def cached_over(box):
    return lru_cache(lambda x: box[0] * x)


STORED = {
    "field of a dict": (Table, lambda kept: setattr(kept, "rate", 2.0)),
    "field of a list": (Rows, lambda kept: setattr(kept, "rate", 2.0)),
    "object of a method": (lambda: Scale().apply, lambda kept: setattr(kept.__self__, "rate", 2.0)),
    "object of a partial": (
        lambda: partial(Scale().apply, 1),
        lambda kept: setattr(kept.func.__self__, "rate", 2.0),
    ),
    "element of a set": (lambda: set(range(20)), lambda kept: (kept.remove(3), kept.add(99))),
    "object in a set": (lambda: {Scale()}, lambda kept: setattr(next(iter(kept)), "rate", 2.0)),
    "object in a frozen set": (
        lambda: frozenset([Scale()]),
        lambda kept: setattr(next(iter(kept)), "rate", 2.0),
    ),
    "object that is a key": (lambda: {Scale(): 0}, lambda kept: setattr(next(iter(kept)), "rate", 2.0)),
    "value of a tuple": (lambda: {(1, 2): 1.0}, lambda kept: kept.update({(1, 2): 2.0})),
    "default of a keyword": (
        lambda: with_keyword,
        lambda kept: setattr(kept, "__kwdefaults__", {"box": (2.0,)}),
    ),
    "attribute of a function": (lambda: marked, lambda kept: setattr(kept, "rate", 2.0)),
    "closure of a cached function": (
        lambda: cached_over([1.0]),
        lambda kept: kept.__wrapped__.__closure__[0].cell_contents.__setitem__(0, 2.0),
    ),
    "user dict": (lambda: UserDict(rate=1.0), lambda kept: kept.update(rate=2.0)),
    "user list": (lambda: UserList([1.0]), lambda kept: kept.__setitem__(0, 2.0)),
    "chain of dicts": (lambda: ChainMap({"rate": 1.0}), lambda kept: kept.update(rate=2.0)),
    "view of a dict": (lambda: MappingProxyType(LOG), lambda kept: LOG.update(rate=2.0)),
    "module in a list": (lambda: [Unregistered()], lambda kept: setattr(kept[0], "rate", 2.0)),
    "mode of a module in a list": (lambda: [Unregistered()], lambda kept: kept[0].eval()),
}


@pytest.mark.parametrize("case", STORED)
def test_all_that_an_attribute_stores_is_a_guard(net, case):
    """A mirror of the module would compute with what it stored before."""
    make, change = STORED[case]
    net.kept = make()
    before = plain_attributes(net)
    change(net.kept)
    assert changed(before, plain_attributes(net))
    LOG.pop("rate", None)


def test_a_module_that_is_not_registered_is_restored(net):
    net.kept = [Unregistered()]
    inner = net.kept[0]
    state = SavedState(net)
    inner.norm(torch.ones(3, 2))
    inner.rate = 2.0

    state.restore()

    assert inner.rate == 1.0
    assert torch.equal(inner.norm.running_mean, torch.zeros(2))
    assert inner.norm.num_batches_tracked == 0


LEFT = {
    **{name: CHANGES[name] for name in ("attribute", "configuration", "dict", "class", "global")},
    "list": lambda net: net.sizes.append(1),
    "deque of tensors": lambda net: net.recent.append(torch.ones(1)),
    "array": lambda net: net.counts.__iadd__(1),
    "list in a global": lambda net: LOG["rows"].append(1),
    "default argument": lambda net: net.keep(1),
}


@pytest.mark.parametrize("change", LEFT)
def test_changed_state_is_found_and_restored(net, change):
    before, state = python_state(net), SavedState(net)
    LEFT[change](net)
    assert changed(before, python_state(net))
    state.restore()
    assert not changed(before, python_state(net))


@pytest.mark.parametrize("tensor", ["plain", "global"])
def test_tensors_that_are_no_buffers_are_restored(net, tensor):
    one = net.plain if tensor == "plain" else TENSOR
    state = SavedState(net)
    one.add_(1)
    assert any(torch.equal(value, torch.ones(2)) for value in state.buffers().values())
    state.restore()
    assert torch.equal(one, torch.zeros(2))


def test_counters_are_numbers_that_changed_by_an_integer(net):
    net.calls, net.epoch, net.rate = 3, 2.0, 0.5
    before = python_state(net)
    net.calls, net.epoch, net.rate = 4, 3.0, 0.25
    assert {name for _, name in counters(before, python_state(net))} == {"calls", "epoch"}


def test_counting_tensors_have_changed_by_an_integer():
    module = nn.Module()
    for name, value in (("calls", 3), ("rate", 0.5), ("phase", 1 + 2j)):
        module.register_buffer(name, torch.tensor(value))
    state = SavedState(module)
    module.calls += 1
    module.rate *= 0.5
    module.phase += 1
    assert state.counting_tensors() == ["calls"]


def test_a_buffer_that_is_written_to_without_a_change_is_named():
    module = nn.BatchNorm1d(2)
    state = SavedState(module)
    versions = state.versions()
    assert state.rewritten(versions) is None
    module.running_mean.copy_(torch.zeros(2))
    assert state.rewritten(versions) == "running_mean"
