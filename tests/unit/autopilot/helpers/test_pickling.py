"""Values of a script are pickled for helpers, also those that pickle itself refuses."""

import builtins
import importlib
import pickle
import sys
import weakref
from contextvars import ContextVar
from functools import cached_property
from threading import Lock
from typing import NewType, ParamSpec

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.utils import prune
from typing_extensions import TypeAliasType, TypeVarTuple

from samestep.autopilot.helpers.pickling import UnsentError, pickled, scripts_modules_by_value, unpickled


def test_a_function_in_c_that_the_script_has_replaced_is_pickled_by_name(monkeypatch):
    """Only this finds that a script which replaces `print` keeps all calls unsplit."""
    original = builtins.print
    monkeypatch.setattr(builtins, "print", lambda *values: original(*values))
    content = pickled({"print": original}, lambda _: None)
    monkeypatch.undo()

    assert unpickled(content, lambda _: None) == {"print": original}


class Proxy:
    """Has the attributes of a value."""

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        return getattr(self.value, name)


class KeepsState(Proxy):
    def __getstate__(self):
        return {"value": -self.__dict__["value"]}

    def __setstate__(self, state):
        self.__dict__.update(state)


def test_an_object_with_the_attributes_of_another_is_made_from_its_fields():
    """Pickle asks it for `__setstate__` before it has fields: only this finds an endless recursion."""
    number = unpickled(pickled(Proxy(3 + 4j), lambda _: None), lambda _: None)
    assert number.imag == 4
    assert unpickled(pickled(KeepsState(2), lambda _: None), lambda _: None).value == -2


def test_annotations_of_optional_arguments_are_pickled():
    """Only this finds that a model whose forward has such an argument stays unsplit."""

    def forward(x: int | None, y: list[int]):
        return x, y

    forward.__module__ = "__main__"
    annotations = unpickled(pickled(forward, lambda _: None), lambda _: None).__annotations__
    assert annotations == forward.__annotations__


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations fail where they stand")
def test_annotations_that_fail_are_pickled_as_text():
    """Only this finds that a forward with a type that only type checkers import keeps its calls unsplit."""
    names = {"__name__": "__main__", "offset": 2}
    exec("def add(value: Missing, *, times: int = 3) -> Missing: return value * times + offset", names)
    names["add"].mark = "marked"

    add = unpickled(pickled(names["add"], lambda _: None), lambda _: None)

    assert add(5) == 17
    assert add.__annotations__ == {"value": "Missing", "times": "int", "return": "Missing"}
    assert add.mark == "marked"


WIDTH = NewType("WIDTH", int)


def test_named_types_of_the_script_are_pickled_by_value():
    """Pickle looks for them in modules that helpers do not have, or in `typing` itself."""
    made = WIDTH, TypeAliasType("Pair", tuple[WIDTH, int]), ParamSpec("Inputs"), TypeVarTuple("Axes")
    width, pair, inputs, axes = unpickled(pickled(made, lambda _: None), lambda _: None)

    assert (width.__name__, width.__supertype__) == ("WIDTH", int)
    assert (pair.__name__, pair.__value__) == ("Pair", tuple[width, int])
    assert (inputs.__name__, axes.__name__) == ("Inputs", "Axes")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no type statement")
def test_an_alias_of_itself_is_pickled():
    """Only this finds a recursion without an end."""
    names = {"__name__": "__main__"}
    exec("type Tree = int | list[Tree]", names)
    assert unpickled(pickled(names["Tree"], lambda _: None), lambda _: None).__name__ == "Tree"


class Layer:
    @cached_property
    def scale(self):
        return 3


@pytest.mark.parametrize(
    "value",
    [
        *(
            torch.channels_last,
            torch.contiguous_format,
            torch.finfo(torch.bfloat16),
            torch.iinfo(torch.uint8),
        ),
        *(torch.ops.aten.gelu, torch.ops.aten.gelu.default),
        *(SDPBackend, SDPBackend.MATH),
    ],
    ids=str,
)
def test_constants_and_operators_of_torch_are_pickled(value):
    """Only this finds that a module with one of them as an attribute keeps its calls unsplit."""
    assert unpickled(pickled(value, lambda _: None), lambda _: None) == value


def test_a_class_with_a_cached_property_is_pickled():
    """It has a lock before Python 3.12."""
    assert unpickled(pickled(type("Layer", (Layer,), {}), lambda _: None), lambda _: None)().scale == 3


def test_weak_references_are_to_the_object_that_is_sent_with_them():
    kept, lost = Layer(), weakref.ref(Layer())
    sent = (
        kept,
        weakref.ref(kept),
        weakref.WeakValueDictionary(kept=kept),
        weakref.WeakKeyDictionary({kept: 1}),
        lost,
    )
    found, reference, values, keys, lost = unpickled(pickled(sent, lambda _: None), lambda _: None)

    assert reference() is found
    assert lost() is None
    assert values["kept"] is found
    assert keys[found] == 1


def test_a_function_that_a_library_has_made_shares_the_values_of_its_module(monkeypatch):
    """A hook of Transformers reads a context variable, which nothing can pickle."""
    exec("def make():\n    return lambda: collector", vars(prune))
    make = prune.make
    monkeypatch.setattr(prune, "collector", ContextVar("collector"), raising=False)
    monkeypatch.delattr(prune, "make")
    assert unpickled(pickled(make(), lambda _: None), lambda _: None)() is prune.collector


def test_modules_of_the_script_that_import_each_other_are_pickled_by_value(tmp_path, monkeypatch):
    nets, tools = tmp_path / "nets_beside.py", tmp_path / "tools_beside.py"
    nets.write_text(
        "import tools_beside\ndef one(): return 1\ndef forward(x): return tools_beside.twice(x)\n"
    )
    tools.write_text("import nets_beside\ndef twice(x): return x + x * nets_beside.one()\n")
    monkeypatch.syspath_prepend(tmp_path)
    forward = importlib.import_module(nets.stem).forward
    with scripts_modules_by_value():
        content = pickled(forward, lambda _: None)
    for file in nets, tools:  # a helper does not have them
        del sys.modules[file.stem]
    assert unpickled(content, lambda _: None)(3) == 6


class Refusing:
    """Refuses to be pickled into a file, as the forward does that Accelerate makes for half precision."""

    def __init__(self):
        self.factor = 3

    def __getstate__(self):
        raise pickle.PicklingError("unwrap it first")


def test_an_object_that_refuses_to_be_pickled_is_sent_as_its_fields():
    assert unpickled(pickled(Refusing(), lambda _: None), lambda _: None).factor == 3


class SavesItself(nn.Linear):
    def __reduce__(self):
        return SavesItself._loaded, (self.weight.tolist(),)

    @staticmethod
    def _loaded(rows):
        made = SavesItself(len(rows[0]), len(rows))
        made.load_state_dict({"weight": torch.tensor(rows), "bias": torch.zeros(len(rows))})
        return made


def test_a_module_that_saves_itself_is_pickled_with_its_own_weights():
    """Keras does so: helpers had copies of the weights, and the gradients of a call were lost."""
    model = SavesItself(2, 3)
    model.extra = 4.0
    tensors = []
    content = pickled(model, lambda tensor: tensors.append(tensor) or len(tensors) - 1)
    made = unpickled(content, tensors.__getitem__)

    assert made.weight is model.weight
    assert made.bias is model.bias
    assert made.extra == model.extra


def test_a_method_of_an_object_that_cannot_be_sent_fails_where_it_is_used():
    """Only this finds it as a name to look up in the stand-in, which fails before any call uses it."""
    found = unpickled(pickled({"acquire": Lock().acquire, "factor": 3}, lambda _: None), lambda _: None)
    assert found["factor"] == 3
    with pytest.raises(UnsentError):
        bool(found["acquire"])
