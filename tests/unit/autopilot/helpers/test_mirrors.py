"""A mirror is sent again after a change of anything that forward reads, wherever the script keeps it."""

import gc
import os
import string
import weakref
from array import array
from collections import ChainMap, UserDict, UserList
from types import MappingProxyType, SimpleNamespace

import networkx as nx
import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.mirrors import MirrorError, Mirrors, MirrorState


def kept():
    """Return a function with a variable of its own, and one that changes it."""
    numbers = [1.0]

    def get():
        return numbers[0]

    def change():
        numbers[0] += 1.0

    return get, change


get, change_kept = kept()


def through_another():
    return get()


def with_default(*, numbers=[1.0]):  # noqa: B006 - which is the case
    return numbers[0]


def of_environment():
    return float(os.environ.get("SAMESTEP_TEST_SCALE", "1"))


class ReadsFunctions(nn.Module):
    def forward(self, x):
        return x * through_another() * with_default() * of_environment()


class Reads(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x, self.value


def change_default():
    with_default.__kwdefaults__["numbers"][0] += 1.0


@pytest.mark.parametrize("change", [change_kept, change_default, None], ids=["closure", "default", "environ"])
def test_a_change_of_what_a_called_function_keeps_is_noted(change, monkeypatch):
    """Only this finds helpers that go on with a former value of a function that forward calls by name."""
    model = ReadsFunctions()
    before = MirrorState.now(model).values
    assert MirrorState.now(model).values == before
    monkeypatch.setenv("SAMESTEP_TEST_SCALE", "2") if change is None else change()
    assert MirrorState.now(model).values != before


def of_library():
    made = string.Template("")
    made.scale = 1.0
    return made


NAMESPACE = SimpleNamespace(scale=1.0)
CHANGES = {
    "bytes": (bytearray(40), lambda value: value.__setitem__(20, 1)),
    "array": (array("d", [1.0] * 40), lambda value: value.__setitem__(20, 2.0)),
    "proxy": (MappingProxyType(vars(NAMESPACE)), lambda _: setattr(NAMESPACE, "scale", 2.0)),
    "chain": (ChainMap({"scale": 1.0}), lambda value: value.update(scale=2.0)),
    "dict of Python code": (UserDict(scale=1.0), lambda value: value.update(scale=2.0)),
    "list of Python code": (UserList([1.0]), lambda value: value.append(2.0)),
    "object of a library": (of_library(), lambda value: setattr(value, "scale", 2.0)),
    "dict in an object of a library": (nx.Graph(scale=1.0), lambda value: value.graph.update(scale=2.0)),
    "object in it": (nx.Graph(part=nx.Graph(scale=[1.0])), lambda value: value.graph["part"].graph.clear()),
    "module in a list": ([Reads(1.0)], lambda value: setattr(value[0], "value", 2.0)),
    "layer in it": ({"a": nn.Sequential(nn.Dropout(0.1))}, lambda value: setattr(value["a"][0], "p", 0.2)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_within_an_object_is_noted(kind):
    """Only this finds helpers that go on with a former value in an object of this kind."""
    value, change = CHANGES[kind]
    model = Reads(value)
    before = MirrorState.now(model).values
    assert MirrorState.now(model).values == before
    change(value)
    assert MirrorState.now(model).values != before


def test_an_object_of_a_library_that_no_code_names_is_not_compared():
    """Lightning's trainer counts in each step, after which helpers would get the module again."""
    model = Reads(1.0)
    model.trainer = nx.Graph(step=0)
    before = MirrorState.now(model).values
    model.trainer.graph["step"] = 1
    assert MirrorState.now(model).values == before


def test_too_many_objects_are_not_compared_in_each_call():
    """Only this finds that a data set behind a model costs more than a split call saves."""
    model = nn.Linear(2, 2)
    model.tables = [[{} for _ in range(60)] for _ in range(60)]
    MirrorState.now(model)
    model.more = [[{} for _ in range(60)] for _ in range(60)]
    with pytest.raises(MirrorError, match="objects"):
        MirrorState.now(model)


def scaling(module):
    return lambda x: x * module.training


def test_the_state_of_a_mirror_keeps_no_module():
    """A mirror is kept as long as its module exists, which a function of the module may refer to."""
    module = Reads(None)
    module.scaled, module.parts = scaling(module), [*range(99), object()]
    values, reference = MirrorState.now(module).values, weakref.ref(module)
    assert values == MirrorState.now(module).values
    del module
    gc.collect()
    assert reference() is None


class SavesRows:
    """Is pickled with a copy of its tensor."""

    def __init__(self, rows):
        self.rows = rows

    def __getstate__(self):
        return {"rows": torch.tensor(self.rows.tolist())}


def test_a_module_with_a_tensor_that_is_not_sent_has_no_mirror():
    """A helper would have a copy of the tensor, which no later write changes."""
    model = Reads(SavesRows(torch.ones(2)))
    with pytest.raises(MirrorError, match="not sent"):
        Mirrors(None).mirrored(model, MirrorState.now(model))
