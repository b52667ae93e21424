"""When the outermost backward ends: the moment at which gradients are exchanged.

Autograd's own callbacks fire once per graph, and a reentrant checkpoint runs a graph inside a graph::

    loss.backward()              outermost: begins
      checkpoint's backward        nested: its callbacks fire here, too early to exchange
      checkpoint's backward        nested
    exchange, then return        outermost: ends

Both go through the attribute ``torch.autograd.backward``, so that is what is replaced, as long as
somebody watches, and put back afterwards.
"""

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from samestep.base.errors import UsageError

_KEY = "samestep.backward"


class Listener(Protocol):
    """Somebody with work to do at the end of each outermost backward in which it takes part."""

    order: int
    """Position among listeners, the same on every rank: they finish in this order."""

    def finish(self) -> None:
        """Do the work."""


class Backward:
    """One outermost backward under way, with those who take part in it."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._thread: int | None = threading.get_ident()

    def is_here(self) -> bool:
        """Return whether the calling gradient hook surely belongs to it; sooner than `under_way` can."""
        return self._thread == threading.get_ident()

    def end(self) -> None:
        """Be over, whether with an error or not."""
        self._thread = None

    def join(self, listener: Listener) -> None:
        """Take part."""
        self._listeners.append(listener)

    def finish(self) -> None:
        """Let the listeners work, in their order."""
        for listener in sorted(self._listeners, key=lambda one: one.order):
            listener.finish()


def under_way() -> Backward:
    """Return the outermost backward that the calling gradient hook belongs to.

    Raises:
        UsageError: the backward was not called by way of ``torch.autograd.backward``.
    """
    backward = _recall()
    if backward is None:
        raise UsageError(
            "a backward of replicated parameters was called through a reference to torch.autograd.backward "
            "that is older than replicate(), so its end cannot be seen. Call loss.backward() or "
            "torch.autograd.backward(...) by its full name."
        )
    return backward


_lock = threading.RLock()  # reentrant: the garbage collector may end a watch inside another one's start
_watchers = 0
_replaced: Callable[..., None] | None = None
_replacement: Callable[..., None] | None = None


def watch() -> None:
    """See to it that outermost backwards are seen, until as many `unwatch` as `watch` were called."""
    global _watchers, _replaced, _replacement  # noqa: PLW0603 - one patch per process
    with _lock:
        _watchers += 1
        if _watchers == 1:
            _replaced = torch.autograd.backward
            _replacement = torch.autograd.backward = _ending(_replaced)


def unwatch() -> None:
    """Undo one `watch`; the last one puts ``torch.autograd.backward`` back."""
    global _watchers, _replaced, _replacement  # noqa: PLW0603 - one patch per process
    with _lock:
        _watchers -= 1
        # Where somebody else has replaced it since, ours stays below theirs, and does nothing.
        if _watchers == 0 and torch.autograd.backward is _replacement and _replaced is not None:
            torch.autograd.backward = _replaced
            _replaced = _replacement = None


def _ending(original: Callable[..., None]) -> Callable[..., None]:
    """Return `original` with the end of its outermost call made visible."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if _recall() is not None:
            return original(*args, **kwargs)
        outermost = Backward()
        _remember(outermost)
        try:
            original(*args, **kwargs)
        finally:
            outermost.end()
            _remember(None)
        outermost.finish()
        return None

    return backward


# Autograd hands the state of the calling thread on to its device threads, where hooks and reentrant
# checkpoints run on a GPU. Objects stashed there travel along; a threading.local would not.


class _Slot:
    """What a thread and its device threads see; stashed once, and only its content is changed."""

    backward: Backward | None = None


def _remember(backward: Backward | None) -> None:
    if not torch._C._is_key_in_tls(_KEY):  # noqa: SLF001
        _stash(_Slot())
    _slot().backward = backward


def _recall() -> Backward | None:
    return _slot().backward if torch._C._is_key_in_tls(_KEY) else None  # noqa: SLF001


def _slot() -> _Slot:
    slot: _Slot = torch._C._get_obj_in_tls(_KEY)  # noqa: SLF001
    return slot


def _stash(slot: _Slot) -> None:
    before = sys.getrefcount(slot)
    torch._C._stash_obj_in_tls(_KEY, slot)  # noqa: SLF001
    if sys.getrefcount(slot) == before:
        # Torch up to 2.6 takes no reference, and yet gives one up when the thread ends: this is the one.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(slot))
