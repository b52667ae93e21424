"""Signals: those that warn of a job's end, and those that end a command, at once or once it may be ended."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""What is sent some time before a job's limit, by default or as sites say; launchers hand them on."""

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler or the system, and a terminal that is closed."""


class Held:
    """Whether this process was asked to end while it could not."""

    def __init__(self) -> None:
        self.asked = False

    def take(self, _number: int, _frame: FrameType | None) -> None:
        """Note a signal."""
        self.asked = True

    def heed(self) -> None:
        """End now what should have ended before.

        Raises:
            KeyboardInterrupt: this process was asked to end.
        """
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[Held]:
    """Note the signals that end a command, and do not end by them: what is begun is brought to its end."""
    noted = Held()
    with _handled(noted.take):
        yield noted


@contextmanager
def interruptible() -> Iterator[None]:
    """Have each signal that ends a command do so as Ctrl-C does, also within `held`."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(end):
        yield


@contextmanager
def _handled(take: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the signals that end a command to `take`; what was ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in ENDS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
