"""Waits for a condition by polling, with growing pauses and a deadline."""

import time
from collections.abc import Callable, Iterator


def polls(timeout_s: float, *, least_s: float = 0.005, most_s: float = 0.5) -> Iterator[float]:
    """Yield the seconds waited so far: at once, after each pause, and a last time after `timeout_s`.

    A pause is a tenth of the time waited, within limits, so that a wait takes at most a tenth longer than
    necessary.
    """
    begin = time.monotonic()
    waited = 0.0
    while True:
        yield waited
        waited = time.monotonic() - begin
        if waited >= timeout_s:
            return
        time.sleep(min(max(least_s, waited / 10), most_s, timeout_s - waited))
        waited = time.monotonic() - begin


def holds_within(
    condition: Callable[[], bool], timeout_s: float, *, least_s: float = 0.005, most_s: float = 0.5
) -> bool:
    """Return whether a condition holds at once or within `timeout_s`; see `polls`."""
    return any(condition() for _ in polls(timeout_s, least_s=least_s, most_s=most_s))
