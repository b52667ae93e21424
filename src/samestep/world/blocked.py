"""Ranks that send to each other and wait for each other, found while they do.

A message of Gloo's ends when it is received, however short it is, and nothing but its timeout of half an hour
ends one that is not. So a rank that has waited for a second writes down in the store whom it waits for, and
follows what others have written. If it comes back to itself twice by the same way, nobody in that circle will
ever go on::

    rank 0: sends to 1        rank 1: sends to 2        rank 2: sends to 0
"""

import threading
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import OutOfStep
from samestep.world.store import Store
from samestep.world.world import Pending

LOOK_S = 1.0
"""How long a rank waits before it looks, and between its looks."""
_KEY = "samestep/blocked/{}"


class Blocked:
    """What one rank waits for in a message that it sends or receives.

    Args:
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._messages = 0
        self._store: Store = _get_default_store()

    def wait(self, work: Pending, *, doing: str, peer: int) -> None:
        """Return when a message has arrived.

        Args:
            work: the message.
            doing: ``sends to`` or ``receives from``.
            peer: whom.

        Raises:
            OutOfStep: ranks wait for each other.
        """
        self._messages += 1
        over, failure = threading.Event(), []

        def wait() -> None:
            try:
                work.wait()
            except BaseException as error:  # noqa: BLE001 - raised again below
                failure.append(error)
            over.set()

        threading.Thread(target=wait, name="samestep-message", daemon=True).start()
        if not over.wait(LOOK_S):
            self._look(over, doing, peer)
        if failure:
            raise failure[0]

    def _look(self, over: threading.Event, doing: str, peer: int) -> None:
        key = _KEY.format(self._rank)
        self._store.set(key, f"{peer} {self._messages} {doing}")
        before: list[str] = []
        try:
            while not over.wait(LOOK_S):
                circle = self._circle()
                if circle and circle == before:
                    words = ", ".join(_words(line) for line in circle)
                    raise OutOfStep(
                        f"the ranks wait for each other: {words}. World.exchange sends and receives at once."
                    )
                before = circle
        finally:
            if over.is_set():
                self._store.delete_key(key)

    def _circle(self) -> list[str]:
        """Return what the ranks of a circle have written, this one first; nothing where there is none."""
        lines: list[str] = []
        at = self._rank
        while len(lines) < self._size and self._store.check([_KEY.format(at)]):
            said: Any = self._store.get(_KEY.format(at))
            lines.append(f"{at} {said.decode()}")
            at = int(said.split()[0])
            if at == self._rank:
                return lines
        return []


def _words(line: str) -> str:
    rank, peer, _, doing = line.split(maxsplit=3)
    return f"rank {rank} {doing} rank {peer}"
