"""Holds values of a thread that torch's device threads see, too.

On a GPU, gradient hooks, `Function.backward` and the recomputed forwards of activation checkpoints run in
torch's device threads. Torch gives them the state of the thread that called backward: stashed objects, but no
context variables and no `threading.local`. So each thread stashes one object, which holds all its values::

    thread of the script    slot: comparing=True
    device thread           the same slot, while it computes a backward of that thread
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
_KEY = "samestep.values"


class _Slot:
    """The values of a thread; only its content changes once it is stashed."""

    def __init__(self) -> None:
        self.values: dict[ThreadValue[Any], Any] = {}


class ThreadValue(Generic[T]):
    """A value of each thread, which its device threads share.

    Args:
        default: the value of a thread in which no block binds another.
    """

    def __init__(self, default: T) -> None:
        self._default = default

    def get(self) -> T:
        """Return the value of the calling thread."""
        slot = own_slot()
        return self._default if slot is None else slot.values.get(self, self._default)

    @contextmanager
    def bound(self, value: T) -> Iterator[None]:
        """Set the value of the calling thread in the block; restore its previous value after it."""
        slot = own_slot()
        if slot is None:
            slot = _Slot()
            stash(slot)
        is_outermost = self not in slot.values
        before = slot.values.get(self, self._default)
        slot.values[self] = value
        try:
            yield
        finally:
            if is_outermost:
                del slot.values[self]
            else:
                slot.values[self] = before


def own_slot() -> _Slot | None:
    """Return the slot of the calling thread; None if it has bound no value yet."""
    if not torch._C._is_key_in_tls(_KEY):  # noqa: SLF001 - no public spelling
        return None
    slot: _Slot = torch._C._get_obj_in_tls(_KEY)  # noqa: SLF001
    return slot


def stash(slot: _Slot) -> None:
    """Give a slot to the calling thread, as torch does with its device threads."""
    before = sys.getrefcount(slot)
    torch._C._stash_obj_in_tls(_KEY, slot)  # noqa: SLF001
    if sys.getrefcount(slot) == before:
        # Torch up to 2.6 takes no reference, but drops one when the thread ends: add that one.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(slot))


@contextmanager
def bound(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable of the calling thread in the block; restore its previous value after it."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
