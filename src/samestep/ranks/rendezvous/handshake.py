"""Exchanges the ranks' peer information through the store, before any process group exists.

::

    every rank  --- peer info: its place, host and device --->  store
    rank 0      <-- reads these one by one, checks them, posts one verdict
    every rank  <-- its slot: the final place, and how many ranks share its processors

So if the ranks do not fit together, all of them report the reason, instead of waiting inside a collective;
and the error names a rank that failed before it could join.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from time import monotonic

from torch.distributed import Store  # type: ignore[attr-defined]  # public by its docs

from samestep.base.documents import read_as
from samestep.base.errors import Error, PeerLost, UsageError, WorldError
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.ranks.rendezvous.network_store import LEAST_PAUSE_S, MOST_PAUSE_S

_ONE_RANK_PER_DEVICE = frozenset({"nccl", "xccl"})  # back ends
# Other ranks wait this much longer than rank 0, so that they receive its error, which names the missing rank;
# and rank 0 stays this long after it has posted an error.
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """Peer information of one rank, which it posts to rank 0."""

    place: Place  # its place, as detected
    assumed: tuple[str, ...] = ()  # fields of `place` that its launcher does not give
    host: str = ""  # name of its host
    cpus: tuple[int, ...] = ()  # its affinity mask
    versions: Mapping[str, str]  # versions that must be equal on all ranks, by package
    kind: str = "cpu"  # kind of its device
    uuid: str = ""  # UUID of its device; empty if unknown
    backend: str = "gloo"  # the back end it has chosen
    error: str = ""  # the reason why it cannot join; empty if it can

    def to_json(self) -> str:
        """Return the information as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "PeerInfo":
        """Return the information that `to_json` wrote."""
        info: PeerInfo = read_as(cls, json.loads(text), "peer info")
        return info


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Slot of one rank: its final place, and how many ranks of its host share its processors."""

    place: Place
    sharing: int = 1


def rendezvous(store: Store, info: PeerInfo, *, timeout_s: float) -> Slot:
    """Return this rank's slot, once all ranks have posted their information to rank 0.

    Raises:
        UsageError: the ranks do not fit together.
        PeerLost: a rank did not arrive within `timeout_s`.
        WorldError: a rank could not join; the message is that rank's.
    """
    place = info.place
    if not place.is_main:
        store.set(f"peer/{place.rank}", info.to_json())
        _wait(store, "verdict", timeout_s + _GRACE_S, waiting_for="rank 0's answer")
        verdict = store.get("verdict")
        store.set(f"received/{place.rank}", "")
        return _slot_from(verdict, place)
    try:
        slots = assign_slots(_collect(store, info, timeout_s))
    except Error as error:
        _refuse(store, error, place)
        raise
    store.set("verdict", json.dumps({"slots": [asdict(slot) for slot in slots]}))
    return slots[0]


def withdraw(store: Store, info: PeerInfo, error: Error) -> None:
    """Post to the other ranks that this rank cannot join, and the reason."""
    place = info.place
    if place.is_main:
        _refuse(store, WorldError(f"rank 0 on {info.host} cannot join: {error}"), place)
        return
    store.set(f"peer/{place.rank}", replace(info, error=str(error)).to_json())
    store.set(f"received/{place.rank}", "")


def assign_slots(infos: Sequence[PeerInfo]) -> list[Slot]:
    """Return the slot of each rank; `infos` are in rank order.

    Raises:
        UsageError: two ranks have the same device and the back end refuses that.
    """
    reason = shared_device(infos[0].backend, [info.uuid for info in infos])
    if reason is not None:
        raise UsageError(reason)
    hosts: dict[str, list[PeerInfo]] = {}
    for info in infos:
        hosts.setdefault(info.host, []).append(info)
    return [Slot(place=_settled(info, hosts), sharing=_sharing(info, hosts[info.host])) for info in infos]


def shared_device(backend: str, uuids: Sequence[str]) -> str | None:
    """Return the error text if ranks share a device and the back end cannot; None otherwise.

    `uuids` are in rank order; empty if unknown.
    """
    if backend not in _ONE_RANK_PER_DEVICE:
        return None
    first: dict[str, int] = {}
    for rank, uuid in enumerate(uuids):
        if uuid and uuid in first:
            return (
                f"ranks {first[uuid]} and {rank} are on the same device ({uuid}), which {backend} refuses. "
                "Start one rank per device, set LOCAL_RANK to the number of each rank on its host, or use "
                "device=cpu."
            )
        first[uuid] = rank
    return None


def _refuse(store: Store, error: Error, place: Place) -> None:
    """Post an error as the verdict; the store ends with rank 0, so wait until the others have read it."""
    store.set("verdict", json.dumps({"error": str(error), "code": error.exit_code}))
    with suppress(PeerLost):
        for rank in range(1, place.size):
            _wait(store, f"received/{rank}", _GRACE_S, waiting_for=f"rank {rank}")


def _collect(store: Store, main: PeerInfo, timeout_s: float) -> list[PeerInfo]:
    """Return the information of all ranks, each checked against rank 0's on arrival."""
    deadline = monotonic() + timeout_s
    infos = [main]
    for rank in range(1, main.place.size):
        left = deadline - monotonic()
        _wait(store, f"peer/{rank}", left, waiting_for=f"rank {rank} of {main.place.size}")
        info = PeerInfo.from_json(store.get(f"peer/{rank}"))
        if info.error:
            raise WorldError(f"rank {rank} on {info.host} cannot join: {info.error}")
        _compare(main, info)
        infos.append(info)
    return infos


def _compare(main: PeerInfo, info: PeerInfo) -> None:
    pairs = {
        "number of ranks": (main.place.size, info.place.size),
        "kind of device": (main.kind, info.kind),
        "back end": (main.backend, info.backend),
        **{
            f"version of {package}": (expected, info.versions.get(package, "none"))
            for package, expected in main.versions.items()
        },
    }
    for subject, (expected, value) in pairs.items():
        if expected != value:
            raise UsageError(
                f"the ranks differ in their {subject}: {expected} on rank 0 ({main.host}), {value} on rank "
                f"{info.place.rank} ({info.host}). Start all of them from the same environment."
            )


def _settled(info: PeerInfo, hosts: Mapping[str, list[PeerInfo]]) -> Place:
    """Correct, from the host names, the fields that the launcher did not give."""
    place, here = info.place, hosts[info.host]
    if "local_rank" in info.assumed:
        place = replace(place, local_rank=here.index(info), local_size=len(here))
    elif "local_size" in info.assumed:
        place = replace(place, local_size=len(here))
    if {"node", "nodes", "local_rank"} & {*info.assumed} and place.local_size == len(here):
        place = replace(place, node=list(hosts).index(info.host), nodes=len(hosts))
    return place


def _sharing(info: PeerInfo, here: Sequence[PeerInfo]) -> int:
    allowed = set(info.cpus)
    return max(1, sum(1 for peer in here if allowed.intersection(peer.cpus)))


def _slot_from(verdict: bytes, place: Place) -> Slot:
    answer = json.loads(verdict)
    if "error" in answer:
        raise (UsageError if answer["code"] == UsageError.exit_code else WorldError)(answer["error"])
    slots = answer["slots"]
    if len(slots) != place.size:
        raise UsageError(
            f"rank {place.rank} was started as one of {place.size} ranks, rank 0 as one of {len(slots)}."
        )
    slot: Slot = read_as(Slot, slots[place.rank], "slot")
    return slot


def _wait(store: Store, key: str, timeout_s: float, *, waiting_for: str) -> None:
    """Return once `key` is posted. Polls rather than blocks, so that Ctrl-C interrupts it."""
    try:
        if not holds_within(
            lambda: store.check([key]), timeout_s, least_s=LEAST_PAUSE_S, most_s=MOST_PAUSE_S
        ):
            raise PeerLost(
                f"{waiting_for} did not come within {timeout_s:.0f} s. "
                "Did it start, and does it reach rank 0?"
            )
    except RuntimeError as error:  # torch raises it if the store is gone
        raise PeerLost(f"rank 0 left while this rank waited for {waiting_for} ({error}).") from error
