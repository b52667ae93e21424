"""Lets the threads of a script split calls in turn, as there is one team of helpers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import nn

_LONGEST_S = 60.0
"""Seconds that a call waits for one of another thread with the same weights."""


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
            other = self._module
            if other is not None and (not _have_common_weights(module, other) or _is_part(module, other)):
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


def _have_common_weights(module: nn.Module, other: nn.Module) -> bool:
    return not set(map(id, module.parameters())).isdisjoint(map(id, other.parameters()))


def _is_part(module: nn.Module, whole: nn.Module) -> bool:
    return module is not whole and any(one is module for one in whole.modules())
