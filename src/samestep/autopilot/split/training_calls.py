"""Detects models that train when they are called: their forward calls backward or steps an optimizer.

Such a call cannot be computed for a comparison, because the states of optimizers and the gradients of
parameters would be those after several calls. It cannot be split either: its backward would be of a slice.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.autopilot.split.slice_context import current_slice
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.thread_values import ThreadValue

_is_comparing = ThreadValue(default=False)


class TrainsError(Exception):
    """A module trains when it is called."""


def training_nothing() -> AbstractContextManager[None]:
    """Raise `TrainsError` where the calling thread is about to call backward or to step an optimizer."""
    return _is_comparing.bound(value=True)


@contextmanager
def detected_training() -> Iterator[None]:
    """Raise an error where a forward, compared or split, calls backward or steps an optimizer."""

    def backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # noqa: SLF001 - else an activation checkpoint calls it
            _check("a backward")
        original(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(attached(declarations.FORWARD_BACKWARD, wrapping(backward)))
        stack.callback(register_optimizer_step_pre_hook(lambda *_: _check("an optimizer step")).remove)
        yield


def _check(what: str) -> None:
    if _is_comparing.get():
        raise TrainsError(f"it runs {what} when it is called")
    if current_slice.get() is not None:
        raise UsageError(f"{what} within a split call of a model trains with a slice.")
