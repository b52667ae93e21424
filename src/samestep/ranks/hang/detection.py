"""Detects hangs from the statuses of all ranks: ranks that wait for a rank that does not arrive."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from samestep.ranks.hang.rank_status import RankStatus, Wait


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

    Args:
        rank: the rank that searches.
        waits: waits by rank.
        counts: whether a rank in this wait waits for no other rank.
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
