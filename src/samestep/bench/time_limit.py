"""Limits the duration of calls, in which ranks can wait for each other for minutes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from samestep.base.console import log
from samestep.base.place import Place

POLL_S = 0.2
"""The longest interval between two checks, in seconds."""


class Limit:
    """Calls a function where a block exceeds its timeout; used in a ``with`` block.

    Args:
        seconds: the timeout.
        give_up: called with the name of the block, from another thread, since the blocked one can hang.
    """

    def __init__(self, seconds: float, give_up: Callable[[str], object]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._under_way: tuple[str, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-limit", daemon=True)

    def __enter__(self) -> "Limit":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Limit the duration of a block."""
        self._under_way = what, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._under_way = None

    def _watch(self) -> None:
        while not self._over.wait(min(POLL_S, self._seconds)):
            under_way = self._under_way
            if under_way is not None and time.monotonic() > under_way[1]:
                self._give_up(under_way[0])
                return


def exit_on_timeout(what: str, *, place: Place, timeout_s: float) -> NoReturn:
    """End this process, whose ranks wait for each other; rank 0 first logs why."""
    if place.is_main:
        log(
            f"error: {what} did not end within {timeout_s:g} s, so the ranks wait for each other. If this is "
            "expected, raise --hang-timeout."
        )
    else:
        time.sleep(1)
    os._exit(1)
