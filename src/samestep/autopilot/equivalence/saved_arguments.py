"""Saves and restores what a call may change in its arguments beside tensors: containers and objects.

A model may append to a list that it is given, update a cache, or call a method that stores what it gets::

    activations = []
    model(x, activations)            the list
    model(x, past_key_values=cache)  the fields of a library's object
    model(x, activations.append)     the list behind a method
"""

from collections.abc import Iterator
from enum import Enum
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.state.reachable_state import PLAIN, cells_of
from samestep.hooks.raw_containers import base_of, contents_of, elements, fields_of, refill, restore_fields

_NO_OBJECTS = (*PLAIN, Tensor, nn.Module, np.ndarray, Enum, type, ModuleType)
_MOST = 1000
"""The number of containers and objects that are saved."""


class SavedArguments:
    """The containers and objects in the arguments of a call, with their contents."""

    def __init__(self, given: CallArguments) -> None:
        self._kept: list[tuple[Any, Any, dict[str, Any]]] = []
        waiting: list[Any] = [given.args, dict(given.kwargs)]
        seen: set[int] = set()
        while waiting and len(self._kept) < _MOST:
            value = waiting.pop()
            if isinstance(value, _NO_OBJECTS) or id(value) in seen:
                continue
            seen.add(id(value))
            contents, fields = _contents(value)
            self._kept.append((value, contents, fields))
            waiting += _parts(value, contents, fields)

    def are_changed(self) -> bool:
        """Return whether a container or an object has other contents than before."""
        for value, *before in self._kept:
            for one, other in zip(before, _contents(value), strict=True):
                if not _are_same(list(_elements(one)), list(_elements(other))):
                    return True
        return False

    def restore(self) -> None:
        """Restore the contents."""
        for value, contents, fields in self._kept:
            if contents is not None:
                refill(value, contents)
            if fields:
                restore_fields(value, fields)


def _contents(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a container, or None, and the fields of an object."""
    contents = contents_of(value) if base_of(value) not in (None, tuple, frozenset) else None
    has_fields = not isinstance(value, (FunctionType, MethodType, BuiltinMethodType))
    return contents, fields_of(value) if has_fields else {}


def _parts(value: Any, contents: Any, fields: dict[str, Any]) -> list[Any]:
    """Return the parts of a value that a call can reach."""
    if isinstance(value, FunctionType):
        return [kept for *_, kept in cells_of(value)]
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [value.__self__]
    own = tuple(elements(value)) if base_of(value) is tuple else contents
    return [*_elements(own), *fields.values()]


def _elements(contents: Any) -> Iterator[Any]:
    if isinstance(contents, dict):
        yield from contents.keys()
        yield from contents.values()
    elif contents is not None:
        yield from contents


def _are_same(before: list[Any], after: list[Any]) -> bool:
    if len(before) != len(after):
        return False
    plain = (
        type(one) is type(other) and isinstance(one, PLAIN) for one, other in zip(before, after, strict=True)
    )
    return all(
        one is other or (is_plain and (one == other or repr(one) == repr(other)))
        for one, other, is_plain in zip(before, after, plain, strict=True)
    )
