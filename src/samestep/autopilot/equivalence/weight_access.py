"""Excludes the threads of a script from each other where they use the weights of one module.

A thread may write a checkpoint, or evaluate a copy of the loop's model, while the main thread calls it in a
new mode for the first time: an equivalence check disturbs the weights. Threads split calls in turn, as there
is one team of helpers.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import nn

from samestep.hooks import module_parts

_changed = threading.Condition()
os.register_at_fork(
    before=_changed.acquire, after_in_parent=_changed.release, after_in_child=_changed.release
)
_disturbed: list[tuple[int, nn.Module]] = []
"""The modules whose weights are disturbed now, each with the thread that has disturbed them."""
_read: list[tuple[int, nn.Module]] = []
"""The modules whose weights are read now, each with the thread that reads them."""


@contextmanager
def disturbing(module: nn.Module) -> Iterator[None]:
    """Disturb the weights of a module in a block, which waits until no other thread reads them."""
    with _entered(_disturbed, module, lambda: _by_others(_read, module)):
        yield


@contextmanager
def reading(module: nn.Module) -> Iterator[None]:
    """Read the weights of a module in a block, which waits until no other thread disturbs any of them."""
    with _entered(_read, module, lambda: _by_others(_disturbed, module)):
        yield


@contextmanager
def calling(module: nn.Module) -> Iterator[None]:
    """Call a module in another thread than the main one; wait until its weights are not disturbed.

    A part of a disturbed module is called at once: the forward that a check runs may call it in a thread.
    """
    here = threading.get_ident()
    with _entered(
        _read, module, lambda: any(by != here and disturbed is module for by, disturbed in _disturbed)
    ):
        yield


@contextmanager
def _entered(
    entries: list[tuple[int, nn.Module]], module: nn.Module, must_wait: Callable[[], bool]
) -> Iterator[None]:
    entry = threading.get_ident(), module
    with _changed:
        _changed.wait_for(lambda: not must_wait())
        entries.append(entry)
    try:
        yield
    finally:
        with _changed:
            entries.remove(entry)
            _changed.notify_all()


def _by_others(entries: list[tuple[int, nn.Module]], module: nn.Module) -> bool:
    """Return whether another thread is in a block for a module that shares weights with this one."""
    here = threading.get_ident()
    return any(
        by != here and (_is_part(module, entered) or _is_part(entered, module)) for by, entered in entries
    )


def _is_part(module: nn.Module, whole: nn.Module) -> bool:
    return any(part is module for part in module_parts.modules(whole))


_LONGEST_S = 60.0
"""Seconds that a call waits for one of another thread with the same weights: a guess."""


class CallLock:
    """The lock that a thread has during a split call, or during its backward."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._module: nn.Module | None = None
        """The module whose call has the lock."""

    def acquire_for(self, module: nn.Module) -> bool:
        """Return whether this thread may split a call now; otherwise it computes the call beside others.

        A call with the same weights as that of another thread waits: a check replaces them. A part of the
        module that is called does not: its forward may have started this thread, and wait for it.
        """
        if not self._lock.acquire(blocking=False):
            locked = self._module
            if locked is not None and (
                not _have_common_weights(module, locked)
                or (module is not locked and _is_part(module, locked))
            ):
                return False
            if not self._lock.acquire(timeout=_LONGEST_S):
                return False
        self._module = module
        return True

    def release(self) -> None:
        """Let another thread split a call."""
        self._module = None
        self._lock.release()

    @contextmanager
    def released(self, module: nn.Module) -> Iterator[None]:
        """Let calls of the block have the lock of this one: parts of its module, also in other threads.

        On a device, a backward in its forward runs in a thread of autograd's.
        """
        self.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._module = module

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _have_common_weights(module: nn.Module, second: nn.Module) -> bool:
    return not set(map(id, module.parameters())).isdisjoint(map(id, second.parameters()))
