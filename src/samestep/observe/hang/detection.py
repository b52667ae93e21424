"""Detects hangs from the statuses of all ranks: ranks that wait for a rank that does not arrive."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from samestep.observe.hang.rank_status import RankStatus, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A wait that never ends.

    Args:
        wait: the wait of the first waiting rank.
        waiting: the ranks in this wait.
        missing: the ranks that have not arrived; empty if all ranks wait, in different calls.
    """

    wait: Wait
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice that the report of a hang gives.

    Args:
        diverged: for ranks that execute different calls.
        slow: for a rank that may only be slow.
    """

    diverged: str
    slow: str


def find_hang(statuses: Mapping[int, RankStatus], size: int, *, limit_s: float, gone_s: float) -> Hang | None:
    """Return the first hang; None if every wait can still end.

    Args:
        statuses: the known statuses, by rank.
        size: number of ranks.
        limit_s: seconds after which a wait is a hang.
        gone_s: the same for a wait for a rank whose script has ended.
    """
    for rank in sorted(statuses):
        wait = statuses[rank].wait
        if wait is None:
            continue
        ranks = wait.ranks or tuple(range(size))
        missing = tuple(r for r in ranks if r != rank and not _has_arrived(statuses.get(r), wait))
        gone = any(r in statuses and statuses[r].state in ("ended", "left") for r in missing)
        if wait.age_s < (gone_s if gone else limit_s):
            continue
        waiting = tuple(r for r in sorted({rank, *ranks}) if _waits_in(statuses.get(r), wait))
        if _waits_differ(ranks, statuses, wait) or _in_cycle(rank, statuses):
            return Hang(wait=wait, waiting=waiting, missing=())
        if missing:
            return Hang(wait=wait, waiting=waiting, missing=_first_causes(missing, statuses))
    return None


def describe(
    hang: Hang, statuses: Mapping[int, RankStatus], size: int, *, quiet: Mapping[int, str], advice: Advice
) -> str:
    """Return the message of a hang: a summary, a line for each group of ranks, and what to do.

    Args:
        hang: the hang.
        statuses: the known statuses, by rank.
        size: number of ranks.
        quiet: the ranks that do not respond, each with the reason.
        advice: what to do.
    """
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        ranks.setdefault(_state(rank, statuses.get(rank), quiet), []).append(rank)
    lines = [f"  {format_ranks(same)}: {state}" for state, same in ranks.items()]
    hint = advice.slow if _may_be_slow(hang, statuses) else advice.diverged
    return "\n".join([_head(hang, size), *lines, hint])


def _head(hang: Hang, size: int) -> str:
    if not hang.missing:
        since = f"for {hang.wait.age_s:.0f} s"
        return f"the run hangs: the ranks have waited for each other {since}, in different calls."
    missing = f"{format_ranks(hang.missing)} of {size} {_has(hang.missing)} not called {hang.wait}"
    waiting = f"{format_ranks(hang.waiting)} {_has(hang.waiting)} waited"
    if not hang.wait.age_s:
        return f"the ranks are out of step: {missing}, in which {waiting}."
    return f"the run hangs: {missing}, in which {waiting} for {hang.wait.age_s:.0f} s."


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _may_be_slow(hang: Hang, statuses: Mapping[int, RankStatus]) -> bool:
    gone = (statuses[rank].state in ("ended", "left") for rank in hang.missing if rank in statuses)
    return bool(hang.missing) and not any(gone)


def ended_before(statuses: Mapping[int, RankStatus], last: Wait) -> tuple[int, ...]:
    """Return the ranks whose script ended, or left its group, before they entered a collective."""
    return tuple(
        rank
        for rank in sorted(last.ranks or statuses)
        if rank in statuses
        and statuses[rank].state in ("ended", "left")
        and not _has_arrived(statuses[rank], last)
    )


def format_ranks(ranks: Collection[int]) -> str:
    """Return ranks as text: ``rank 1``, ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


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
    found = {(one.op, one.seq, one.group) for one in waits if one is not None}
    from_any = wait.op == "recv" and not wait.ranks
    return len(waits) == len(ranks) and None not in waits and (len(found) > 1 or from_any)


def _in_cycle(rank: int, statuses: Mapping[int, RankStatus]) -> bool:
    """Return whether a chain of ranks, each waiting for a message to or from the next, returns to `rank`.

    Only send and recv count: ranks in an exchange may wait for each other while messages are on the way.
    """
    current = rank
    for _ in statuses:
        wait = statuses[current].wait if current in statuses else None
        if wait is None or wait.op not in ("send", "recv") or not wait.ranks:
            return False
        current = wait.ranks[0]
        if current == rank:
            return True
    return False


def _state(rank: int, status: RankStatus | None, quiet: Mapping[int, str]) -> str:
    if status is None:
        return "no status received"
    line, after = status.line or "outside of the script", f"after {status.collectives} collectives"
    if status.state == "running" and rank in quiet:
        return f"{quiet[rank]}, last seen at {line}"
    if status.wait is not None:
        return f"waiting in {status.wait} at {line}"
    return {
        "ended": f"ended its script {after}",
        "failed": f"failed {after}",
        "left": f"destroyed its process group {after}, at {line}",
        "running": f"in no collective {after}, at {line}",
    }[status.state]
