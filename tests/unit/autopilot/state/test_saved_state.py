"""The state of a module is restored after a call."""

from collections import OrderedDict
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import nn

from samestep.autopilot.state.reachable_state import reached
from samestep.autopilot.state.saved_state import HeldTensors, SavedArguments, SavedState


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


class Store:
    def __init__(self):
        self.items, self.last = [], None

    def put(self, value):
        self.items.append(value)


def setting(store, value):
    store.last = value


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (list, list.append),
        (dict, lambda given, value: given.update(found=value)),
        (set, set.add),
        (lambda: {"inner": []}, lambda given, value: given["inner"].append(value)),
        (lambda: [].append, lambda given, value: given(value)),
        (lambda: Store().put, lambda given, value: given(value)),
        (Store, Store.put),
        (Store, setting),
    ],
    ids=["list", "dict", "set", "nested", "method of a list", "bound method", "field", "attribute"],
)
def test_a_change_is_found_and_undone(make, change):
    argument = make()
    saved = SavedArguments((torch.ones(2), argument), {})
    assert not saved.are_changed()

    change(argument, torch.zeros(2))
    assert saved.are_changed()
    saved.restore()

    assert not saved.are_changed()


def test_objects_that_refer_to_each_other_are_saved():
    first, second = Store(), Store()
    first.last, second.last = second, first
    saved = SavedArguments((), {"store": first})
    second.put(1)

    assert saved.are_changed()


class Schedules(nn.Linear):
    """Sets the learning rate of its optimizer when it is called."""

    def __init__(self):
        super().__init__(3, 2)
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)

    def forward(self, x):
        self.optimizer.param_groups[0]["lr"] /= 2
        return super().forward(x)


def test_a_learning_rate_that_a_call_sets_is_restored():
    module = Schedules()
    before = SavedState(module)
    module(torch.ones(4, 3))
    before.restore()
    assert module.optimizer.param_groups[0]["lr"] == 0.1


references = WeakKeyDictionary()


@lru_cache
def numbers_drawn(count):
    return torch.rand(count)


class Stateful(nn.Module):
    """Has state of each kind that is not among its attributes."""

    __slots__ = ("calls",)

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.teachers = [nn.Linear(3, 3)]
        self.calls = 0
        references[self] = 1.0

    def forward(self, x):
        return x * references[self]


def swap_layers(module):
    module.first, module.second = module.second, module.first


def add_hook(module):
    module.first.register_forward_hook(lambda *_: None)


def count_in_slot(module):
    module.calls += 1


def scale_reference(module):
    references[module] *= 2


def move_teacher(module):
    for parameter in module.teachers[0].parameters():
        parameter.data.mul_(2)


@pytest.mark.parametrize("change", [swap_layers, add_hook, count_in_slot, scale_reference, move_teacher])
def test_state_beside_attributes_is_restored(change):
    module = Stateful()

    def state():
        weight = module.teachers[0].weight.tolist()
        return [*map(id, module.children())], len(module.first._forward_hooks), module.calls, weight

    module_state, reference = state(), references[module]
    before = SavedState(module, saves_weights=True)
    change(module)
    before.restore()
    assert (state(), references[module]) == (module_state, reference)


class HoldsGenerators(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.table = np.random.default_rng(3), np.zeros(4)
        self.drawn = lru_cache(None)(self.generator.random)

    def forward(self):
        self.table += self.drawn(2)[0]
        return self.table[0]


def test_an_undone_call_leaves_caches_generators_and_arrays_as_before():
    """Catches a number that stays in a cache, or a generator that goes on, when a split call is undone."""
    module = HoldsGenerators()
    before = HeldTensors(module, [value for _, value in reached(module)])
    first = module()
    before.restore()
    assert module() == first


class Cached(nn.Module):
    def forward(self, x):
        return numbers_drawn(x.size(0))


@pytest.mark.parametrize("maxsize", [128, None])
def test_a_cache_keeps_its_earlier_results_only(monkeypatch, maxsize):
    drawn = lru_cache(maxsize)(numbers_drawn.__wrapped__)
    monkeypatch.setitem(globals(), "numbers_drawn", drawn)
    module, known = Cached(), drawn(2)
    before = SavedState(module)
    module(torch.ones(4))
    before.restore()
    assert drawn(2) is known
    assert drawn.cache_info().currsize == 1


def test_a_tensor_that_no_module_registers_has_the_name_that_the_script_uses():
    module = nn.Sequential(nn.Linear(2, 2))
    module.inactive, module[0].seen = torch.zeros(2), torch.zeros(2)
    names = SavedState(module).buffers().keys()
    assert "inactive" in names
    assert "seen of 0" in names  # of the submodule "0"
