"""Measures the time spent in training steps, without the pauses between them."""

import time
from collections.abc import Callable


class Stopwatch:
    """The total time between each start and the next stop.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """The total so far; set by a resumed run."""
        self._now = now
        self._began = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._began = self._now()

    def stop(self) -> None:
        """Add the time since the last start."""
        self.seconds += self._now() - self._began
