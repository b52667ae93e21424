"""Records the signals that ask this process to stop; the training loop then saves a checkpoint and ends."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """The latest stop signal that this process has received; true once there is one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def record(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; installed as its handler."""
        self.signal = signal.Signals(number)


@contextmanager
def stop_request(names: Sequence[str]) -> Iterator[StopRequest]:
    """Record the signals called `names` within the block, instead of ending the process.

    Ranks that are threads receive no signals, so their request stays false.

    Args:
        names: of the signals, such as ``TERM``.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.Signals[f"SIG{name}"] for name in names]
    before = {number: signal.signal(number, request.record) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
