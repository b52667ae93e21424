"""A walk enters all that objects store, each once, by no method that a script may have written."""

from collections import OrderedDict, deque
from functools import partial

import pytest

from samestep.hooks.object_graph import stored_in, walk

REFUSED = (
    *("__getitem__", "__iter__", "__len__", "__contains__", "__bool__", "__eq__", "__getattr__", "__dir__"),
    *("__repr__", "__str__", "__format__", "keys", "values", "items", "get", "copy", "__reduce__"),
)


def refuse(self, *args, **kwargs):
    raise RuntimeError


def refusing(base):
    """Return a class whose methods raise."""
    return type("Refusing", (base,), {**dict.fromkeys(REFUSED, refuse), "__hash__": object.__hash__})


def names_of(value, depth=3):
    return [name for (_, name), _ in walk([((0, "kept"), value)], stored_in, depth=depth)]


@pytest.mark.parametrize("base", [dict, OrderedDict, list, tuple, deque, set, frozenset, object, partial])
def test_no_method_of_a_class_is_called(base):
    arguments = {dict: [{"x": 1}], OrderedDict: [{"x": 1}], object: [], partial: [int, 1]}
    kept = refusing(base)(*arguments.get(base, [[1]]))
    object.__setattr__(kept, "field", 2.0)
    values = [value for _, value in stored_in(kept)]
    assert values[-1] == 2.0
    assert base is object or 1 in values


def test_a_key_of_a_class_of_the_script_is_not_written_as_text():
    key = refusing(object)()
    assert [part for _, part in stored_in({key: 1})] == [key, 1]


def test_values_that_refer_to_each_other_are_entered_once():
    first, second = {"a": 1}, {"b": 2}
    first["second"], second["first"] = second, first
    assert names_of(first, float("inf")) == [
        *("kept", "kept.a", "kept.second", "kept.second.b", "kept.second.first"),
    ]


def test_parts_are_followed_to_a_depth():
    assert names_of([[[[5]]]]) == ["kept", "kept.0", "kept.0.0", "kept.0.0.0"]


def test_the_items_of_a_long_container_are_left_out_and_its_fields_are_not():
    kept = type("Rows", (list,), {})(range(5))
    kept.rate = 1
    assert stored_in(kept, most=4) == [("rate", 1)]
