"""Handles signals that warn of a job's end and signals that end a command, at once or deferred."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import NoReturn, TypeAlias

from samestep.base.errors import INTERRUPTED


def _known(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals that this system has: Windows, where `samestep report` works, lacks some."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


WARNINGS = _known("SIGUSR1", "SIGUSR2", "SIGXCPU")
"""Signals that schedulers send some time before a job's limit; launchers forward them."""
ENDS = _known("SIGINT", "SIGTERM", "SIGHUP")
"""Signals of Ctrl-C, of a scheduler or the system, and of a closed terminal."""
_LAST_OUTPUT: list[str] = []
Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers
"""A function that receives a signal, or ``SIG_DFL``."""


class DeferredSignals:
    """A record of whether a signal to end arrived while signals were deferred."""

    def __init__(self) -> None:
        self.asked = False

    def take(self, _number: int, _frame: FrameType | None) -> None:
        """Record a signal."""
        self.asked = True

    def heed(self) -> None:
        """End this process now if a signal arrived.

        Raises:
            KeyboardInterrupt: a signal arrived.
        """
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[DeferredSignals]:
    """Record the signals that end a command without ending, for the duration of a block."""
    noted = DeferredSignals()
    with ends_handled(noted.take):
        yield noted


def interruptible() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on each signal that ends a command, also within `held`."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return ends_handled(end)


def ends_handled(take: Handler) -> AbstractContextManager[None]:
    """Handle the signals that end a command by `take`; ignored signals stay ignored."""
    return handled(unless_ignored(ENDS), take)


def unless_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those of the signals that this process was not started to ignore."""
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextmanager
def handled(numbers: Iterable[signal.Signals], take: Handler) -> Iterator[None]:
    """Handle signals by `take` for the duration of a block; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end this process at once, with a line, for a block that has nothing to undo.

    For imports: Python can lose a KeyboardInterrupt in the callbacks of its import locks, and a library
    prints its traceback if its own import is interrupted.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handled([signal.SIGINT] if is_default else [], _end_process):
        yield


def end_by_interrupt_with(code: int) -> None:
    """Let Ctrl-C end this process, whose work is done, with the exit code of that work."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))


def set_last_output(text: str) -> None:
    """Set what is printed on stdout if Ctrl-C ends this process in a block of `ended_by_interrupt`."""
    _LAST_OUTPUT[:] = [text]


def _end_process(_number: int, _frame: FrameType | None) -> NoReturn:
    """End this process without Python's cleanup, with a line on stderr."""
    with suppress(OSError):
        os.write(2, b"samestep: interrupted.\n")
        os.write(1, "".join(_LAST_OUTPUT).encode())
    os._exit(INTERRUPTED)
