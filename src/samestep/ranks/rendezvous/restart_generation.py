"""Agrees on a name for one restart generation of the ranks, in a store that keeps keys of earlier ones.

torchrun's agents on several nodes serve one store for all starts of their workers, and each agent counts
restarts separately. A rank that reads the keys of a dead one would join a world that is gone. So each rank
except 0 posts a random word, and only a live rank 0 answers it::

    rank r    hello/r = WORD          rank 0    answer/WORD = NAME
    rank r    heard/NAME/r            rank 0    continues once all ranks have posted this
"""

from typing import Protocol
from uuid import uuid4

from samestep.base.errors import PeerLost
from samestep.base.place import Place
from samestep.base.polling import holds_within, polls

_LEAST_S, _MOST_S = 0.0005, 0.25


class Store(Protocol):
    """Part of torch's stores that this module uses."""

    def set(self, key: str, value: str) -> None:
        """Post a value, in place of an older one."""

    def get(self, key: str) -> bytes:
        """Return a posted value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are posted."""


def name_of_life(store: Store, place: Place, *, timeout_s: float) -> str:
    """Return a name that is the same on all live ranks, and that no earlier restart generation has used.

    Args:
        store: a store that may hold keys of earlier ranks.
        place: place of this rank.
        timeout_s: seconds to wait for the other ranks.

    Raises:
        PeerLost: a rank did not arrive, or the store is gone.
    """
    try:
        return _named(store, place, timeout_s) if place.is_main else _asked(store, place, timeout_s)
    except RuntimeError as error:  # torch raises it if the store is gone
        raise PeerLost(f"the agents' store was lost during the rendezvous ({error}).") from error


def _named(store: Store, place: Place, timeout_s: float) -> str:
    """Answer every word, as rank 0, until all ranks have confirmed the answer to their own."""
    name, answered = uuid4().hex, set[bytes]()
    missing = list(range(1, place.size))
    for _ in polls(timeout_s, least_s=_LEAST_S, most_s=_MOST_S):
        for rank in missing:
            if store.check([f"hello/{rank}"]) and (word := store.get(f"hello/{rank}")) not in answered:
                store.set(f"answer/{word.decode()}", name)
                answered.add(word)
        missing = [rank for rank in missing if not store.check([f"heard/{name}/{rank}"])]
        if not missing:
            return name
    raise PeerLost(
        f"rank {missing[0]} of {place.size} did not come within {timeout_s:g} s. Did it start, and "
        "does it reach the agents' store?"
    )


def _asked(store: Store, place: Place, timeout_s: float) -> str:
    word = uuid4().hex
    store.set(f"hello/{place.rank}", word)
    if not holds_within(lambda: store.check([f"answer/{word}"]), timeout_s, least_s=_LEAST_S, most_s=_MOST_S):
        raise PeerLost(f"rank 0 of {place.size} did not come within {timeout_s:g} s. Did it start?")
    name = store.get(f"answer/{word}").decode()
    store.set(f"heard/{name}/{place.rank}", "")
    return name
