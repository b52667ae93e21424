"""A name that only the ranks now alive agree on, in a store that keeps the keys of those before them.

torchrun's agents on several nodes serve one store for all starts of their workers, and no two agents count
restarts alike. A rank that reads what a dead one has posted would join a world that is gone. So each rank but
0 asks with a word that nobody has used, and only a living rank 0 answers it::

    rank r    hello/r = WORD          rank 0    answer/WORD = NAME
    rank r    heard/NAME/r            rank 0    goes on once all have heard
"""

from threading import Event
from time import monotonic
from typing import Protocol
from uuid import uuid4

from samestep.base.errors import PeerLost
from samestep.base.place import Place


class Store(Protocol):
    """The part of torch's stores that is used here."""

    def set(self, key: str, value: str) -> None:
        """Post a value, in place of an older one."""

    def get(self, key: str) -> bytes:
        """Return a posted value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are posted."""


def name_of_life(store: Store, place: Place, *, timeout_s: float) -> str:
    """Return a name that is the same on all ranks alive, and that no rank before them has had.

    Args:
        store: may hold whatever earlier ranks have posted.
        place: this rank's.
        timeout_s: how long the others may take to come.

    Raises:
        PeerLost: they did not come, or the store is gone.
    """
    try:
        return _named(store, place, timeout_s) if place.is_main else _asked(store, place, timeout_s)
    except RuntimeError as error:  # torch's, where the store is gone
        raise PeerLost(f"the agents' store went away while the ranks met ({error}).") from error


def _named(store: Store, place: Place, timeout_s: float) -> str:
    """Be rank 0: answer every word there is, until all ranks have heard the answer to their own."""
    name, answered = uuid4().hex, set[bytes]()
    missing = list(range(1, place.size))
    pause, begin = Event(), monotonic()
    while missing:
        for rank in missing:
            if store.check([f"hello/{rank}"]) and (word := store.get(f"hello/{rank}")) not in answered:
                store.set(f"answer/{word.decode()}", name)
                answered.add(word)
        missing = [rank for rank in missing if not store.check([f"heard/{name}/{rank}"])]
        waited = monotonic() - begin
        if missing and waited > timeout_s:
            raise PeerLost(
                f"rank {missing[0]} of {place.size} did not come within {timeout_s:g} s. Did it start, and "
                "does it reach the agents' store?"
            )
        pause.wait(_pause(waited) if missing else 0)
    return name


def _asked(store: Store, place: Place, timeout_s: float) -> str:
    word = uuid4().hex
    store.set(f"hello/{place.rank}", word)
    pause, begin = Event(), monotonic()
    while not store.check([f"answer/{word}"]):
        waited = monotonic() - begin
        if waited > timeout_s:
            raise PeerLost(f"rank 0 of {place.size} did not come within {timeout_s:g} s. Did it start?")
        pause.wait(_pause(waited))
    name = store.get(f"answer/{word}").decode()
    store.set(f"heard/{name}/{place.rank}", "")
    return name


def _pause(waited: float) -> float:
    """Return how long to wait for the next look: at most a tenth later than need be."""
    return min(max(0.0005, waited / 10), 0.25)
