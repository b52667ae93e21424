"""Detects hangs from the statuses of all ranks: ranks that wait for a rank that does not arrive.

If all ranks of a group wait for each other, it finds how their calls differ.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from samestep.base.units import format_ranks, verb
from samestep.ranks.hang.rank_status import MESSAGES, RankStatus, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A wait that never ends."""

    wait: Wait  # the wait of the first waiting rank
    waiting: tuple[int, ...]  # the ranks in this wait
    missing: tuple[int, ...]  # the ranks that have not arrived; empty if all ranks wait, in different calls


def find_hang(
    statuses: Mapping[int, RankStatus],
    size: int,
    *,
    limit_s: float,
    gone_s: float,
    quiet: Collection[int] = (),
) -> Hang | None:
    """Return the first hang; None if every wait can still end.

    Args:
        statuses: the known statuses, by rank.
        size: number of ranks.
        limit_s: seconds after which a wait is a hang.
        gone_s: the same for a wait for a rank whose script has ended.
        quiet: the ranks that do not respond. Their statuses are old: they wait for no rank, and are missing
            if no other rank is.
    """
    statuses = {rank: replace(one, wait=None) if rank in quiet else one for rank, one in statuses.items()}
    for rank in sorted(statuses):
        wait = statuses[rank].wait
        if wait is None:
            continue
        ranks = wait.ranks or tuple(range(size))
        missing = tuple(r for r in ranks if r != rank and not _has_arrived(statuses.get(r), wait))
        missing = missing or tuple(r for r in ranks if r in quiet)
        gone = _are_gone(missing, statuses, wait)
        if wait.age_s < (gone_s if gone else limit_s):
            continue
        waiting = tuple(r for r in sorted({rank, *ranks}) if _waits_in(statuses.get(r), wait))
        if _waits_differ(ranks, statuses, wait) or _sends_in_circle(rank, statuses):
            return Hang(wait=wait, waiting=waiting, missing=())
        if missing:
            return Hang(wait=wait, waiting=waiting, missing=_first_causes(missing, statuses))
    return None


def find_circle(rank: int, waits: Mapping[int, Wait], counts: Callable[[Wait], bool]) -> list[int]:
    """Return the ranks, each waiting for a message to or from the next, from `rank` back to it; or none.

    A rank whose wait `counts` waits for no other rank.
    """
    circle: list[int] = []
    current: int | None = rank
    while current is not None and current not in circle:
        wait = waits.get(current)
        if wait is None or not counts(wait):
            return []
        circle.append(current)
        current = wait.peer
    return circle if current == rank else []


def ended_before(statuses: Mapping[int, RankStatus], last: Wait) -> tuple[int, ...]:
    """Return the ranks whose script ended, or left its group, before they entered a collective."""
    return tuple(
        rank
        for rank in sorted(last.ranks or statuses)
        if rank in statuses
        and statuses[rank].state in ("ended", "left")
        and not _has_arrived(statuses[rank], last)
    )


def _are_gone(missing: Sequence[int], statuses: Mapping[int, RankStatus], wait: Wait) -> bool:
    """Return whether a wait cannot end: for any rank's message, all ranks must be gone, else one of them."""
    gone = [r in statuses and statuses[r].state in ("ended", "left") for r in missing]
    return bool(gone) and (all(gone) if _is_from_any(wait) else any(gone))


def _is_from_any(wait: Wait) -> bool:
    """Return whether a rank waits for a message that any rank may send."""
    return wait.op == "recv" and not wait.ranks


def _has_arrived(status: RankStatus | None, wait: Wait) -> bool:
    if status is None:
        return False
    if wait.seq is not None and wait.group in status.entered:
        return status.entered[wait.group] >= wait.seq
    if wait.op in ("init_process_group", "samestep.join") and status.has_joined:
        return True
    return wait.seq is None and status.wait is not None


def _waits_in(status: RankStatus | None, wait: Wait) -> bool:
    own = None if status is None else status.wait
    return own is not None and (own.group, own.seq) == (wait.group, wait.seq)


def _first_causes(missing: Sequence[int], statuses: Mapping[int, RankStatus]) -> tuple[int, ...]:
    """Remove the ranks that wait for others themselves, unless all do."""
    free = tuple(r for r in missing if r not in statuses or statuses[r].wait is None)
    return free or tuple(missing)


def _waits_differ(ranks: Sequence[int], statuses: Mapping[int, RankStatus], wait: Wait) -> bool:
    """Return whether all ranks wait in different calls: a call in which all ranks wait may only be slow."""
    waits = [statuses[rank].wait for rank in ranks if rank in statuses]
    found = {(one.op, one.seq, one.group, one.root) for one in waits if one is not None}
    return len(waits) == len(ranks) and None not in waits and (len(found) > 1 or _is_from_any(wait))


def _sends_in_circle(rank: int, statuses: Mapping[int, RankStatus]) -> bool:
    """Return whether ranks send to each other; an exchange may wait while messages are on the way."""
    waits = {one: status.wait for one, status in statuses.items() if status.wait is not None}
    return bool(find_circle(rank, waits, lambda wait: wait.op in ("send", "recv")))


Kind: TypeAlias = Literal["calls", "data", "roots", "messages"]
_DOING = {"send": "sends to", "recv": "receives from", "exchange": "exchanges with"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the calls of ranks."""

    kind: Kind  # other collectives, other data in one collective, other roots, or messages that do not match
    words: str


def find_difference(hang: Hang, statuses: Mapping[int, RankStatus]) -> Difference | None:
    """Return the first difference between the calls of the ranks; None if it is unknown."""
    waits = {
        rank: status.wait
        for rank, status in sorted(statuses.items())
        if status.wait is not None and status.wait.group == hang.wait.group
    }
    return _in_messages(waits) or _in_recent(waits) or _in_roots(waits)


def _in_messages(waits: Mapping[int, Wait]) -> Difference | None:
    if len(waits) < 2 or any(wait.op not in MESSAGES for wait in waits.values()):
        return None
    each = [
        f"rank {rank} {_DOING[wait.op]} {'any rank' if wait.peer is None else f'rank {wait.peer}'}"
        for rank, wait in waits.items()
    ]
    return Difference("messages", f"the ranks wait for each other: {', '.join(each)}")


def _in_recent(waits: Mapping[int, Wait]) -> Difference | None:
    """Return the difference between the recorded collectives of one number."""
    recorded = {rank: {one[0]: one[1:] for one in wait.recent} for rank, wait in waits.items()}
    for number in sorted({number for calls in recorded.values() for number in calls}):
        ranks: dict[tuple[str, str], list[int]] = {}
        for rank, calls in recorded.items():
            if number in calls:
                ranks.setdefault(calls[number], []).append(rank)
        if len(ranks) > 1:
            return _different(number, ranks)
    return None


def _different(number: int, ranks: Mapping[tuple[str, str], list[int]]) -> Difference:
    names = {op for op, _ in ranks}
    if len(names) == 1:
        each = ", ".join(
            f"{format_ranks(same)} {verb(same, 'gives', 'give')} {data or 'none'}"
            for (_, data), same in ranks.items()
        )
        return Difference("data", f"the ranks call {names.pop()} #{number} with different data: {each}")
    each = ", ".join(
        f"{format_ranks(same)} {verb(same, 'calls', 'call')} {op} #{number}{data and f' of {data}'}"
        for (op, data), same in ranks.items()
    )
    return Difference("calls", f"the ranks call different collectives: {each}")


def _in_roots(waits: Mapping[int, Wait]) -> Difference | None:
    roots = {rank: wait.root for rank, wait in waits.items() if wait.root is not None}
    if len(set(roots.values())) < 2:
        return None
    wait = next(iter(waits.values()))
    each = ", ".join(f"rank {rank} gives {root}" for rank, root in roots.items())
    return Difference("roots", f"the ranks call {wait} with different roots: {each}")
