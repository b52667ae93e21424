"""Passes messages between ranks that are threads, by mailboxes.

Every wait has a deadline, a rank that fails wakes all the others, and ranks that wait for each other in a
circle fail at once: each rank waits for one other rank, so that a circle is found by following the waits
until they return to the first rank.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samestep.base.errors import OutOfStep, PeerLost


@dataclass(slots=True)
class _Entry:
    message: object
    taken: bool = False


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait of a rank: the peer, a description, and a function that returns whether it is over."""

    peer: int
    text: str
    over: Callable[[], bool]


class Hub:
    """Mailboxes between the ranks of one world.

    A rank that waits for another one for `timeout_s` seconds fails.
    """

    def __init__(self, size: int, *, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self._boxes: dict[tuple[int, int, str], deque[_Entry]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._waits: dict[int, _Wait] = {}
        self._ended: set[int] = set()
        self._failed: dict[int, BaseException] = {}

    def put(self, source: int, to: int, kind: str, message: object) -> None:
        """Put a message into a mailbox; never blocks."""
        with self._changed:
            self._boxes[source, to, kind].append(_Entry(message))
            self._changed.notify_all()

    def hand_over(self, source: int, to: int, kind: str, message: object) -> None:
        """Put a message into a mailbox, and return once the receiver has taken it.

        Raises:
            PeerLost: `to` failed or ended, or did not take it within the deadline.
            OutOfStep: ranks wait for each other.
        """
        entry = _Entry(message)
        with self._changed:
            self._boxes[source, to, kind].append(entry)
            self._changed.notify_all()
            text = f"rank {source} sends to rank {to} ({kind})"
            self._wait(source, _Wait(to, text, lambda: entry.taken), silent="takes nothing")

    def take(self, source: int, to: int, kind: str) -> Any:
        """Return the oldest message of this kind from `source` to `to`.

        Raises:
            PeerLost: `source` failed or ended, or sent nothing within the deadline.
            OutOfStep: ranks wait for each other.
        """
        with self._changed:
            box = self._boxes[source, to, kind]
            text = f"rank {to} receives from rank {source} ({kind})"
            self._wait(to, _Wait(source, text, lambda: bool(box)), silent="sends nothing")
            entry = box.popleft()
            entry.taken = True
            self._changed.notify_all()
            return entry.message

    def end(self, rank: int) -> None:
        """Wake every waiting rank and mark `rank` as ended."""
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """Wake every waiting rank and mark `rank` as failed."""
        with self._changed:
            self._failed.setdefault(rank, error)
            self._changed.notify_all()

    def first_failure(self) -> tuple[int, BaseException] | None:
        """Return the rank that failed first, and its error."""
        return next(iter(self._failed.items()), None)

    def _wait(self, rank: int, wait: _Wait, *, silent: str) -> None:
        deadline = time.monotonic() + self.timeout_s
        self._waits[rank] = wait
        try:
            while not wait.over():
                self._refuse_in_vain(rank, wait, silent)
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise PeerLost(f"{wait.text}, which {silent} for {self.timeout_s:g} s.")
        finally:
            del self._waits[rank]

    def _refuse_in_vain(self, rank: int, wait: _Wait, silent: str) -> None:
        if self._failed:
            failed, error = next(iter(self._failed.items()))
            raise PeerLost(f"rank {rank} waited for rank {wait.peer}, but rank {failed} failed: {error!r}")
        if wait.peer in self._ended:
            raise PeerLost(f"{wait.text}, which {silent}: it has ended.")
        circle = self._circle(rank)
        if circle:
            raise OutOfStep(
                f"the ranks wait for each other: {', '.join(circle)}. World.exchange sends and receives "
                "at once."
            )

    def _circle(self, rank: int) -> list[str]:
        """Return descriptions of the waits in a circle of ranks; none if there is no circle."""
        text: list[str] = []
        at = rank
        while len(text) <= self.size:
            wait = self._waits.get(at)
            if wait is None or wait.over():
                return []
            text.append(wait.text)
            at = wait.peer
            if at == rank:
                return text
        return []
