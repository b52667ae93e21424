"""Whether ranks wait for one that does not come: worked out from where each of them stands."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from samestep.watch.standing import Standing, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Ranks that wait in vain.

    Args:
        wait: what they wait in, as the first of them has it.
        waiting: those who do.
        missing: those who do not come; nobody where all are there, each in something else.
    """

    wait: Wait
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a hang.

    Args:
        apart: where the ranks take different ways.
        late: where one may only take long.
    """

    apart: str
    late: str


def find_hang(standings: Mapping[int, Standing], size: int, *, limit_s: float, gone_s: float) -> Hang | None:
    """Return the first hang there is; a rank that waits for what may still come is none.

    Args:
        standings: what is known, by rank.
        size: how many ranks there are.
        limit_s: how long a rank may wait.
        gone_s: how long it may wait for one whose script has ended.
    """
    for rank in sorted(standings):
        wait = standings[rank].wait
        if wait is None:
            continue
        ranks = wait.ranks or tuple(range(size))
        missing = tuple(r for r in ranks if r != rank and not _has_come(standings.get(r), wait))
        gone = any(r in standings and standings[r].state in ("ended", "left") for r in missing)
        if wait.age_s < (gone_s if gone else limit_s):
            continue
        waiting = tuple(r for r in sorted({rank, *ranks}) if _waits_in(standings.get(r), wait))
        if _at_cross_purposes(ranks, standings, wait) or _in_a_circle(rank, standings):
            return Hang(wait=wait, waiting=waiting, missing=())
        if missing:
            return Hang(wait=wait, waiting=waiting, missing=_first_causes(missing, standings))
    return None


def describe(
    hang: Hang, standings: Mapping[int, Standing], size: int, *, quiet: Mapping[int, str], advice: Advice
) -> str:
    """Return the hang in words: a line for the whole, one for each place, and what to do.

    Args:
        hang: it.
        standings: what is known, by rank.
        size: how many ranks there are.
        quiet: the ranks that do not answer, and what is known of why.
        advice: what to do.
    """
    told = [(_place(rank, standings.get(rank), quiet), rank) for rank in range(size)]
    lines = [
        f"  {listed([rank for _, rank in same])}: {place}"
        for place, same in groupby(sorted(told, key=lambda one: _order(one, told)), key=lambda one: one[0])
    ]
    return "\n".join([_head(hang, size), *lines, advice.late if _may_come(hang, standings) else advice.apart])


def _head(hang: Hang, size: int) -> str:
    waiting = f"{listed(hang.waiting)} {'waits' if len(hang.waiting) == 1 else 'wait'}"
    since = f" for {hang.wait.age_s:.0f} s" if hang.wait.age_s else ""
    if not hang.missing:
        return f"the run hangs: the ranks wait for each other{since}, not all in the same place."
    verb = "does" if len(hang.missing) == 1 else "do"
    what = "the run hangs" if since else "the ranks are out of step"
    return f"{what}: {listed(hang.missing)} of {size} {verb} not come to {hang.wait}, where {waiting}{since}."


def _may_come(hang: Hang, standings: Mapping[int, Standing]) -> bool:
    gone = (standings[rank].state in ("ended", "left") for rank in hang.missing if rank in standings)
    return bool(hang.missing) and not any(gone)


def ran_out(standings: Mapping[int, Standing], last: Wait) -> tuple[int, ...]:
    """Return the ranks whose script has ended, or left its group, before they came to a collective."""
    return tuple(
        rank
        for rank in sorted(last.ranks or standings)
        if rank in standings
        and standings[rank].state in ("ended", "left")
        and not _has_come(standings[rank], last)
    )


def listed(ranks: Sequence[int] | Collection[int]) -> str:
    """Return ranks in words: ``rank 1``, ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def _has_come(standing: Standing | None, wait: Wait) -> bool:
    if standing is None:
        return False
    if wait.seq is not None and wait.group in standing.entered:
        return standing.entered[wait.group] >= wait.seq
    if wait.op in ("init_process_group", "samestep.join") and standing.met:
        return True
    return wait.seq is None and standing.wait is not None


def _waits_in(standing: Standing | None, wait: Wait) -> bool:
    own = None if standing is None else standing.wait
    return own is not None and (own.group, own.seq) == (wait.group, wait.seq)


def _first_causes(missing: Sequence[int], standings: Mapping[int, Standing]) -> tuple[int, ...]:
    """Leave out those who wait for others themselves, unless all do."""
    free = tuple(r for r in missing if r not in standings or standings[r].wait is None)
    return free or tuple(missing)


def _at_cross_purposes(ranks: Sequence[int], standings: Mapping[int, Standing], wait: Wait) -> bool:
    """Return whether all wait, and not in the same thing: one that all are in may only be slow."""
    waits = [standings[rank].wait for rank in ranks if rank in standings]
    found = {(one.op, one.seq, one.group) for one in waits if one is not None}
    from_any = wait.op == "recv" and not wait.ranks
    return len(waits) == len(ranks) and None not in waits and (len(found) > 1 or from_any)


def _in_a_circle(rank: int, standings: Mapping[int, Standing]) -> bool:
    """Return whether a rank waits for a message to or from one that waits for one, and so on, back to it.

    What an exchange waits for may be on its way all the same.
    """
    at = rank
    for _ in standings:
        wait = standings[at].wait if at in standings else None
        if wait is None or wait.op not in ("send", "recv") or not wait.ranks:
            return False
        at = wait.ranks[0]
        if at == rank:
            return True
    return False


def _place(rank: int, standing: Standing | None, quiet: Mapping[int, str]) -> str:
    if standing is None:
        return "never heard of"
    at, after = standing.at or "outside of the script", f"after {standing.collectives} collectives"
    if standing.state == "running" and rank in quiet:
        return f"{quiet[rank]}, last seen at {at}"
    if standing.wait is not None:
        return f"waiting in {standing.wait} at {at}"
    return {
        "ended": f"ended its script {after}",
        "failed": f"failed {after}",
        "left": f"destroyed its process group {after}, at {at}",
        "running": f"in no collective {after}, at {at}",
    }[standing.state]


def _order(one: tuple[str, int], told: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """Sort by the first rank in the same place, then by rank."""
    return next(rank for place, rank in told if place == one[0]), one[1]
