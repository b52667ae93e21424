"""Finds the functions of torch that the script has replaced, such as ``F.linear``: helpers have torch's own.

The layers of torch call them by these names, so no code of the script need name them.
"""

from collections.abc import Hashable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional


class _Owner:
    """A module or a class of torch, and the functions that it had when this file was imported."""

    def __init__(self, name: str, owner: Any) -> None:
        self._name, self._fields = name, vars(owner)
        self._first = dict(self._fields)
        self._last = [*self._fields.values()]
        self._replaced: dict[str, Any] = {}
        self._key: Hashable = None

    def replaced(self) -> dict[str, Any]:
        """Return the functions that are others now, or new, by their names."""
        self._read()
        return self._replaced

    def key(self) -> Hashable:
        """Return a value that changes with the code of one of them."""
        self._read()
        return self._key

    def _read(self) -> None:
        now = [*self._fields.values()]
        if now == self._last:  # each call compares them, and functions are equal only to themselves
            return
        self._last = now
        self._replaced = {
            f"{self._name}.{name}": value
            for name, value in [*self._fields.items()]
            if callable(value) and value is not self._first.get(name)
        }
        self._key = frozenset((name, _code(function)) for name, function in self._replaced.items())


_OWNERS = [
    _Owner(name, owner)
    for name, owner in (
        ("torch", torch),
        ("torch.Tensor", torch.Tensor),
        ("torch.nn.functional", functional),
        ("torch.linalg", torch.linalg),
        ("torch.special", torch.special),
        ("torch.fft", torch.fft),
    )
]


def replaced_functions() -> Iterator[tuple[str, Any]]:
    """Yield the functions of torch that are others than at first, or new, with their names."""
    for owner in _OWNERS:
        yield from owner.replaced().items()


def key_of_replaced() -> Hashable:
    """Return a value that changes with the code of a function that replaces one of torch."""
    return tuple(owner.key() for owner in _OWNERS)


def _code(function: Any) -> Hashable:
    if isinstance(function, FunctionType):
        return function.__code__
    return function if isinstance(function, Hashable) else id(function)
