"""Exchanges the ranks' peer information through the store, before any process group exists.

::

    every rank  --- card: its place, host and device --->  store
    rank 0      <-- reads the cards one by one, checks them, posts one verdict
    every rank  <-- its seat: the final place, and how many ranks share its processors

So if the ranks do not fit together, all of them report the reason, instead of waiting inside a collective;
and the error names a rank that failed before it could join.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, Protocol

from samestep.base.errors import Error, PeerLost, UsageError, WorldError
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.ranks.world.device import shared_device

# Other ranks wait this much longer than rank 0, so that they receive its error, which names the missing rank;
# and rank 0 stays this long after it has posted an error.
_GRACE_S = 10.0


class Store(Protocol):
    """Part of torch's stores that this module uses."""

    def set(self, key: str, value: str) -> None:
        """Post a value."""

    def get(self, key: str) -> bytes:
        """Return a posted value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are posted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Peer information of one rank, which it posts to rank 0.

    Args:
        place: its place, as detected.
        assumed: fields of `place` that its launcher does not give.
        host: name of its host.
        cpus: its affinity mask.
        versions: versions that must be equal on all ranks, by package.
        kind: kind of its device.
        uuid: UUID of its device; empty if unknown.
        backend: the back end it has chosen.
        error: the reason why it cannot join; empty if it can.
    """

    place: Place
    assumed: tuple[str, ...] = ()
    host: str = ""
    cpus: tuple[int, ...] = ()
    versions: Mapping[str, str]
    kind: str = "cpu"
    uuid: str = ""
    backend: str = "gloo"
    error: str = ""

    def to_json(self) -> str:
        """Return the card as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Card":
        """Return the card that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        fields["place"] = Place(**fields["place"])
        for name in ("assumed", "cpus"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Answer to one rank: its final place, and how many ranks of its host share its processors."""

    place: Place
    sharing: int = 1


def meet(store: Store, card: Card, *, timeout_s: float) -> Seat:
    """Return this rank's seat, once all ranks have posted their cards to rank 0.

    Raises:
        UsageError: the ranks do not fit together.
        PeerLost: a rank did not arrive within `timeout_s`.
        WorldError: a rank could not join; the message is that rank's.
    """
    place = card.place
    if not place.is_main:
        store.set(f"card/{place.rank}", card.to_json())
        _wait(store, "verdict", timeout_s + _GRACE_S, waiting_for="rank 0's answer")
        verdict = store.get("verdict")
        store.set(f"heard/{place.rank}", "")
        return _seat_from(verdict, place)
    try:
        seats = judge(_collect(store, card, timeout_s))
    except Error as error:
        _refuse(store, error, place)
        raise
    store.set("verdict", json.dumps({"seats": [asdict(seat) for seat in seats]}))
    return seats[0]


def withdraw(store: Store, card: Card, error: Error) -> None:
    """Post to the other ranks that this rank cannot join, and the reason."""
    place = card.place
    if place.is_main:
        _refuse(store, WorldError(f"rank 0 on {card.host} cannot join: {error}"), place)
        return
    store.set(f"card/{place.rank}", replace(card, error=str(error)).to_json())
    store.set(f"heard/{place.rank}", "")


def judge(cards: Sequence[Card]) -> list[Seat]:
    """Return the seat of each rank.

    Args:
        cards: cards of all ranks, in rank order.

    Raises:
        UsageError: two ranks have the same device and the back end refuses that.
    """
    reason = shared_device(cards[0].backend, [card.uuid for card in cards])
    if reason is not None:
        raise UsageError(reason)
    hosts: dict[str, list[Card]] = {}
    for card in cards:
        hosts.setdefault(card.host, []).append(card)
    return [Seat(place=_settled(card, hosts), sharing=_sharing(card, hosts[card.host])) for card in cards]


def _refuse(store: Store, error: Error, place: Place) -> None:
    """Post an error as the verdict; the store ends with rank 0, so wait until the others have read it."""
    store.set("verdict", json.dumps({"error": str(error), "code": error.exit_code}))
    with suppress(PeerLost):
        for rank in range(1, place.size):
            _wait(store, f"heard/{rank}", _GRACE_S, waiting_for=f"rank {rank}")


def _collect(store: Store, own: Card, timeout_s: float) -> list[Card]:
    """Return the cards of all ranks, each checked against rank 0's on arrival."""
    deadline = monotonic() + timeout_s
    cards = [own]
    for rank in range(1, own.place.size):
        left = deadline - monotonic()
        _wait(store, f"card/{rank}", left, waiting_for=f"rank {rank} of {own.place.size}")
        card = Card.from_json(store.get(f"card/{rank}"))
        if card.error:
            raise WorldError(f"rank {rank} on {card.host} cannot join: {card.error}")
        _compare(own, card)
        cards.append(card)
    return cards


def _compare(main: Card, other: Card) -> None:
    pairs = {
        "number of ranks": (main.place.size, other.place.size),
        "kind of device": (main.kind, other.kind),
        "back end": (main.backend, other.backend),
        **{
            f"version of {package}": (mine, other.versions.get(package, "none"))
            for package, mine in main.versions.items()
        },
    }
    for what, (mine, theirs) in pairs.items():
        if mine != theirs:
            raise UsageError(
                f"the ranks differ in their {what}: {mine} on rank 0 ({main.host}), {theirs} on rank "
                f"{other.place.rank} ({other.host}). Start all of them from the same environment."
            )


def _settled(card: Card, hosts: Mapping[str, list[Card]]) -> Place:
    """Correct, from the host names, the fields that the launcher did not give."""
    place, here = card.place, hosts[card.host]
    if "local_rank" in card.assumed:
        place = replace(place, local_rank=here.index(card), local_size=len(here))
    if {"node", "nodes", "local_rank"} & {*card.assumed} and place.local_size == len(here):
        place = replace(place, node=list(hosts).index(card.host), nodes=len(hosts))
    return place


def _sharing(card: Card, here: Sequence[Card]) -> int:
    mine = set(card.cpus)
    return max(1, sum(1 for other in here if mine.intersection(other.cpus)))


def _seat_from(verdict: bytes, place: Place) -> Seat:
    answer = json.loads(verdict)
    if "error" in answer:
        raise (UsageError if answer["code"] == UsageError.exit_code else WorldError)(answer["error"])
    seats = answer["seats"]
    if len(seats) != place.size:
        raise UsageError(
            f"rank {place.rank} was started as one of {place.size} ranks, rank 0 as one of {len(seats)}."
        )
    seat = seats[place.rank]
    return Seat(place=Place(**seat["place"]), sharing=seat["sharing"])


def _wait(store: Store, key: str, timeout_s: float, *, waiting_for: str) -> None:
    """Return once `key` is posted. Polls rather than blocks, so that Ctrl-C interrupts it."""
    try:
        if not holds_within(lambda: store.check([key]), timeout_s, least_s=0.0005, most_s=0.25):
            raise PeerLost(
                f"{waiting_for} did not come within {timeout_s:.0f} s. "
                "Did it start, and does it reach rank 0?"
            )
    except RuntimeError as error:  # torch raises it if the store is gone
        raise PeerLost(f"rank 0 left while this rank waited for {waiting_for} ({error}).") from error
