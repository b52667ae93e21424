"""Being asked to stop: the step is finished, a checkpoint written, and the run can go on later."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether this process has been asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; a second one changes nothing."""
        self.signal = signal.Signals(number)


@contextmanager
def stop_request(names: Sequence[str]) -> Iterator[StopRequest]:
    """Note the signals that ask to stop instead of ending by them.

    Ranks that are threads of one process cannot take signals; there nothing is ever noted.

    Args:
        names: of the signals, such as ``TERM``.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.Signals[f"SIG{name}"] for name in names]
    before = {number: signal.signal(number, request.take) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
