"""An end for what does not end: ranks that wait for each other would do so for minutes, and say nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_S = 0.2
"""How long it is between two looks, at most."""


class Limit:
    """Gives up where something takes longer than it may; used in a ``with`` block.

    Args:
        seconds: how long anything may take.
        give_up: told what it was, from another thread: the one that waits may never come back.
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
        """Give up if the block does not end in time.

        Args:
            what: it is, in words.
        """
        self._under_way = what, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._under_way = None

    def _watch(self) -> None:
        while not self._over.wait(min(LOOK_S, self._seconds)):
            under_way = self._under_way
            if under_way is not None and time.monotonic() > under_way[1]:
                self._give_up(under_way[0])
                return
