"""Activation checkpoints within split calls: backward recomputes the same slice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping


@dataclass(frozen=True, slots=True)
class SliceContext:
    """The slice that is being computed.

    Args:
        split: how the batch is sharded.
        again: returns the context that recomputes a part of the slice, given the draws before that part.
        draws: returns how many random draws the call has made so far.
    """

    split: BatchSplit
    again: Callable[[int], AbstractContextManager[Any]]
    draws: Callable[[], int]


_slice: ContextVar[SliceContext | None] = ContextVar("samestep_slice", default=None)


def is_within_slice() -> bool:
    """Return whether the caller computes a slice of a split call, for the first time or again."""
    return _slice.get() is not None


def current_split() -> BatchSplit | None:
    """Return the division of the batch whose slice the caller computes; None outside of split calls."""
    context = _slice.get()
    return None if context is None else context.split


@contextmanager
def within_slice(context: SliceContext) -> Iterator[None]:
    """Set the slice that the block computes."""
    token = _slice.set(context)
    try:
        yield
    finally:
        _slice.reset(token)


@contextmanager
def checkpoints_of_slices() -> Iterator[None]:
    """Let activation checkpoints recompute the slice that they were made in."""

    def checkpoint(
        original: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        context = _slice.get()
        if context is None:
            return original(function, *args, **kwargs)
        draws_before = context.draws()

        def of_slice(*own: Any, **named: Any) -> Any:
            if is_within_slice():
                return function(*own, **named)
            with context.again(draws_before):
                return function(*own, **named)

        return original(of_slice, *args, **kwargs)

    with attached(declarations.ACTIVATION_CHECKPOINT, wrapping(checkpoint)):
        yield
