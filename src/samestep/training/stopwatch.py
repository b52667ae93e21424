"""The time spent in training steps: what is done between them is left out."""

import time
from collections.abc import Callable


class Stopwatch:
    """Adds up the time between each start and the next stop.

    Args:
        now: returns seconds; must never go backwards.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """So far; may be set where a run goes on."""
        self._now = now
        self._began = 0.0

    def start(self) -> None:
        """Go on now."""
        self._began = self._now()

    def stop(self) -> None:
        """Stand still until the next start."""
        self.seconds += self._now() - self._began
