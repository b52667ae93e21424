"""Describes a hang: a summary, a line for each group of ranks, and what to do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from samestep.ranks.hang.detection import Hang
from samestep.ranks.hang.loop_end import has_left_loop, is_in_training_loop
from samestep.ranks.hang.rank_status import RankStatus

_BUFFERS = (
    "The forward of a DistributedDataParallel model with buffers contains a broadcast: call it on every "
    "rank, or call model.module on a single rank."
)
_OTHER_BROADCASTS = ("broadcast", "step(", "DDP(", "DistributedDataParallel(")
"""Parts of lines that call a broadcast which is not that of buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice that the report of a hang gives.

    Args:
        diverged: for ranks that execute different calls.
        steps: for a rank that has left the training loop in which another one is.
        slow: for a rank that may only be slow.
    """

    diverged: str
    steps: str
    slow: str


@dataclass(frozen=True, slots=True)
class HangReport:
    """The message of a hang, and whether ranks take different numbers of steps."""

    text: str
    steps_differ: bool


def describe(
    hang: Hang, statuses: Mapping[int, RankStatus], size: int, *, quiet: Mapping[int, str], advice: Advice
) -> HangReport:
    """Return the report of a hang: a summary, a line for each group of ranks, and what to do.

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
    steps_differ = False
    if _may_be_slow(hang, statuses):
        hint = advice.slow
    elif any(_is_buffer_broadcast(status) for status in statuses.values()):
        hint = _BUFFERS
    else:
        steps_differ = _steps_differ(statuses.values())
        hint = advice.steps if steps_differ else advice.diverged
    return HangReport("\n".join([_head(hang, size), *lines, hint]), steps_differ)


def _steps_differ(statuses: Collection[RankStatus]) -> bool:
    """Return whether a rank has left the training loop in which another one waits."""
    waiting = {status.line for status in statuses if status.wait is not None}
    running = {status.line for status in statuses if status.state != "ended"}
    if any(status.state == "ended" for status in statuses) and any(map(is_in_training_loop, waiting)):
        return True
    return any(has_left_loop(line, inside) for inside in waiting for line in running - {inside})


def _is_buffer_broadcast(status: RankStatus) -> bool:
    """Return whether a rank waits in the broadcast of a model's buffers, which its forward contains."""
    text = status.line.rpartition(".py:")[2]
    is_broadcast = status.wait is not None and status.wait.op == "broadcast"
    return is_broadcast and not any(name in text for name in _OTHER_BROADCASTS)


def _head(hang: Hang, size: int) -> str:
    if not hang.missing:
        since = f"for {hang.wait.age_s:.0f} s"
        return f"the run hangs: the ranks have waited for each other {since}, in different calls."
    missing = (
        f"{format_ranks(hang.missing)} of {size} {verb(hang.missing, 'has', 'have')} not called {hang.wait}"
    )
    waiting = f"{format_ranks(hang.waiting)} {verb(hang.waiting, 'has', 'have')} waited"
    if not hang.wait.age_s:
        return f"the ranks are out of step: {missing}, in which {waiting}."
    return f"the run hangs: {missing}, in which {waiting} for {hang.wait.age_s:.0f} s."


def _may_be_slow(hang: Hang, statuses: Mapping[int, RankStatus]) -> bool:
    gone = (statuses[rank].state in ("ended", "left") for rank in hang.missing if rank in statuses)
    return bool(hang.missing) and not any(gone)


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


def verb(ranks: Collection[int], one: str, many: str) -> str:
    """Return the form of a verb that fits a number of ranks."""
    return one if len(ranks) == 1 else many


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
