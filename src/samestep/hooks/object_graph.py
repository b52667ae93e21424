"""Walks over all that a value stores: the graph of a script's objects, in which each is entered once.

The parts of a value are its elements, items and fields, what a function keeps, and the object of a method::

    model.config         a dict with a field      "rate", "<0>", "seed"
    model.config.rate    a function               its closure, defaults and attributes

They are read as in `samestep.hooks.raw_containers`, never by a method that the script may have written. For
inputs and outputs, which are built again around other tensors, see `samestep.hooks.tensor_tree`.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from gc import get_referents
from itertools import chain
from logging import Logger
from types import BuiltinMethodType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, TypeAlias

from samestep.hooks.raw_containers import base_of, elements, fields_of, items, setting_of

Key: TypeAlias = tuple[int, str]
"""The number of a root, such as a module, and the name of a value that it refers to."""
Parts: TypeAlias = list[tuple[Any, Any]]
"""The parts of a value, each with its name."""
WEAK: Any = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
"""The classes of references that do not keep what they refer to."""
_PLAIN = (int, float, complex, str, bytes, type(None))


def walk(
    roots: Iterable[tuple[Key, Any]],
    parts_of: Callable[[Any], Parts],
    *,
    depth: float,
    known: Iterable[int] = (),
) -> Iterator[tuple[Key, Any]]:
    """Yield each root and what it refers to, with keys, such as ``(0, "config.rate")`` for a part of a root.

    A value that is reached again is yielded with its other key, but not its parts. Keys are distinct: the
    globals ``rate`` of two files are ``rate`` and ``rate (2)``.

    Args:
        roots: the first values.
        parts_of: returns the parts that are followed, such as `stored_in`; numbers and texts have none.
        depth: the number of steps from a root to the deepest part.
        known: the ids of values whose parts are not followed.
    """
    counts: dict[Key, int] = {}
    for key, value in _walk(roots, parts_of, depth, set(known)):
        counts[key] = count = counts.get(key, 0) + 1
        yield key if count == 1 else (key[0], f"{key[1]} ({count})"), value


def _walk(
    roots: Iterable[tuple[Key, Any]], parts_of: Callable[[Any], Parts], depth: float, seen: set[int]
) -> Iterator[tuple[Key, Any]]:
    for root, start in roots:
        if issubclass(type(start), _PLAIN):  # most attributes of a module
            yield root, start
            continue
        place, name = root
        waiting = [(name, start, depth)]
        while waiting:
            name, value, left = waiting.pop()
            yield (place, name), value
            if not left or id(value) in seen:
                continue
            seen.add(id(value))
            inner = []
            for key, part in parts_of(value):
                if issubclass(type(part), _PLAIN):
                    yield (place, f"{name}.{key}"), part
                else:
                    inner.append((f"{name}.{key}", part, left - 1))
            waiting += reversed(inner)


def stored_in(value: Any, *, most: float = float("inf")) -> Parts:
    """Return all that a value stores; nothing for a class, a module of Python or a logger: they have names.

    Args:
        value: any object.
        most: the number of items above which those of a container are left out.
    """
    kind, base = type(value), base_of(value)
    parts: Parts = []
    if base is not None:
        parts = _contents(value, base) if base.__len__(value) <= most else []
        if kind is base:
            return parts
        parts += [] if (setting := setting_of(value)) is None else [("<setting>", setting)]
    elif issubclass(kind, partial):
        reduced: Any = partial.__reduce__(value)
        function, arguments, named, _ = reduced[2]
        parts = [("func", function), *enumerate(arguments), *(named or {}).items()]
    elif (kept := _kept_by(value, kind)) is not None:
        return kept
    return [*parts, *fields_of(value).items()]


def _contents(container: Any, base: Any) -> Parts:
    """Return the elements of a container by their places, or its items by their keys.

    A key that is no text or integer is a part, too; an element of a set is a key.
    """
    if base in (list, tuple, deque):
        return [*enumerate(elements(container))]
    is_set = base in (set, frozenset)
    pairs = [(element, element) for element in elements(container)] if is_set else items(container)
    parts: Parts = []
    for place, (key, part) in enumerate(pairs):
        if type(key) is str or type(key) is int:
            parts.append((key, part))
        else:  # how it is written may be a method of the script
            parts += [(f"key {place}", key)] if is_set else [(f"key {place}", key), (f"<{place}>", part)]
    return parts


def _kept_by(value: Any, kind: Any) -> Parts | None:
    """Return what a function, a method, a weak reference or a read-only view keeps; None for others."""
    if kind is FunctionType:
        return [
            *((name, part) for name, _, part in cells_of(value)),
            *enumerate(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).items(),
            *value.__dict__.items(),
        ]
    if kind is MethodType:
        return [("__func__", value.__func__), ("__self__", value.__self__)]
    if kind is BuiltinMethodType:
        return [("__self__", value.__self__)]
    if kind in WEAK:
        referred = [value()] if kind is weakref.ref else chain(*value.items())
        return [(f"<{place}>", part) for place, part in enumerate(referred)]
    if kind is MappingProxyType:
        return [*enumerate(get_referents(value))]  # not by the methods of the dict
    return [] if issubclass(kind, (type, ModuleType, Logger)) else None


def cells_of(function: FunctionType) -> list[tuple[str, CellType, Any]]:
    """Return the variables of enclosing functions that a function refers to, with their values if set."""
    variables: list[tuple[str, CellType, Any]] = []
    if function.__closure__ is None:
        return variables
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        with suppress(ValueError):
            variables.append((name, cell, cell.cell_contents))  # an empty cell raises
    return variables
