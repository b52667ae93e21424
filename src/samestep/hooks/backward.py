"""Runs gradient synchronization at the end of each top-level backward.

Autograd's own callbacks run once per graph, and reentrant checkpointing runs a graph inside a graph::

    loss.backward()              top level begins
      checkpoint's backward        nested: its callbacks run here, too early to synchronize
      checkpoint's backward        nested
    synchronize, then return     top level ends

Both call ``torch.autograd.backward``, so that attribute is replaced while any synchronizer is attached.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attach
from samestep.hooks.thread_values import ThreadValue

_ENGINE = ("grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad")


def arguments_of_engine(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of torch's engine after the outputs, by its names for them."""
    return {**dict(zip(_ENGINE, args, strict=False)), **kwargs}


class Participant(Protocol):
    """A synchronizer, which works at the end of each top-level backward in which it has gradients."""

    order: int
    """Position among participants, the same on every rank: they finish in this order."""

    def finish(self) -> None:
        """Synchronize the gradients."""


class TopLevelBackward:
    """A running top-level backward and its participants."""

    has_nested = False
    """Whether another backward has run inside this one."""

    def __init__(self) -> None:
        self._participants: list[Participant] = []
        self._thread: int | None = threading.get_ident()

    def is_here(self) -> bool:
        """Return whether this thread began the backward; a faster check than `current_backward`."""
        return self._thread == threading.get_ident()

    def end(self) -> None:
        """Mark the backward as ended, with or without an error."""
        self._thread = None

    def join(self, participant: Participant) -> None:
        """Add a participant."""
        self._participants.append(participant)

    def finish(self) -> None:
        """Finish the participants in their order."""
        for participant in sorted(self._participants, key=lambda participant: participant.order):
            participant.finish()


_current: ThreadValue[TopLevelBackward | None] = ThreadValue(None)


def current_backward() -> TopLevelBackward:
    """Return the top-level backward that the calling gradient hook belongs to.

    Raises:
        UsageError: the backward was not called through ``torch.autograd.backward``.
    """
    backward = _current.get()
    if backward is None:
        raise UsageError(
            "a backward of replicated parameters was called through a reference to torch.autograd.backward "
            "that is older than replicate(), so its end is not detected. Call loss.backward() or "
            "torch.autograd.backward(...) by its full name."
        )
    return backward


_lock = threading.RLock()  # reentrant: the garbage collector may call `uninstall` inside `install`
_users = 0
_detach: Callable[[], None] | None = None


def install() -> None:
    """Replace ``torch.autograd.backward``, until `uninstall` was called as often as `install`."""
    global _users, _detach  # noqa: PLW0603 - one hook per process
    with _lock:
        _users += 1
        if _users == 1:
            _detach = attach(declarations.SYNCHRONIZED_BACKWARD, _ending)


def uninstall() -> None:
    """Undo one `install`; the last one puts ``torch.autograd.backward`` back."""
    global _users, _detach  # noqa: PLW0603 - one hook per process
    with _lock:
        _users -= 1
        if _users == 0 and _detach is not None:
            _detach()
            _detach = None


def _ending(original: Callable[..., None]) -> Callable[..., None]:
    """Return `original` with `finish` called at the end of each top-level call."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if (surrounding := _current.get()) is not None:
            surrounding.has_nested = True
            return original(*args, **kwargs)
        top_level = TopLevelBackward()
        with _current.bound(top_level):
            try:
                original(*args, **kwargs)
            finally:
                top_level.end()
        top_level.finish()
        return None

    return backward


class GraphEnd:
    """A callback at the end of the graph of one backward at a time.

    Autograd runs its final callbacks in the order in which they were queued. This one is queued first, so
    that it runs before the callback in which DistributedDataParallel waits for communication.

    Args:
        callback: runs at the end of the graph.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._hook: Any = None

    def follow(self, losses: Sequence[Tensor]) -> None:
        """Register the callback for the backward that is about to begin from `losses`."""
        for loss in losses:
            if loss.grad_fn is not None:
                self._hook = loss.grad_fn.register_prehook(self._begun)
                return

    def remove_hook(self) -> None:
        """Remove the hook, so that another backward of the same graph is not followed."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _begun(self, _: Sequence[Tensor]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - no public spelling
        engine.queue_callback(self._callback)
