"""Activation checkpoints within split calls: what backward computes again is the same slice again."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias
from unittest.mock import patch

import torch.utils.checkpoint

AsSlice: TypeAlias = Callable[[], AbstractContextManager[Any]]
_as_slice: ContextVar[AsSlice | None] = ContextVar("samestep_as_slice", default=None)


def is_within_slice() -> bool:
    """Return whether the caller computes a slice of a split call, for the first time or again."""
    return _as_slice.get() is not None


@contextmanager
def within_slice(again: AsSlice) -> Iterator[None]:
    """Within, a slice is computed.

    Args:
        again: returns what it is computed within, for who computes a part of it again.
    """
    token = _as_slice.set(again)
    try:
        yield
    finally:
        _as_slice.reset(token)


@contextmanager
def checkpoints_of_slices() -> Iterator[None]:
    """Have activation checkpoints remember which slice they are of."""
    original: Callable[..., Any] = torch.utils.checkpoint.checkpoint

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        again = _as_slice.get()
        if again is None:
            return original(function, *args, **kwargs)

        def of_slice(*own: Any, **named: Any) -> Any:
            if is_within_slice():
                return function(*own, **named)
            with again():
                return function(*own, **named)

        return original(of_slice, *args, **kwargs)

    with patch.object(torch.utils.checkpoint, "checkpoint", checkpoint):
        yield
