"""Waits for a condition or a call with a deadline."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


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


def with_timeout(limit_s: float, call: Callable[[], T], *, name: str) -> T:
    """Return what `call` returns, or raise what it raises; a call that takes longer goes on in its thread.

    Raises:
        TimeoutError: the call took longer than `limit_s` seconds; the thread called `name` is alive.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def main() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=main, name=name, daemon=True)
    thread.start()
    thread.join(limit_s)
    if raised:
        raise raised[0]
    if not returned:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return returned[0]
