"""Describes a hang: a summary, a line for each group of ranks, and what to do."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from samestep.base.units import format_ranks, verb
from samestep.ranks.hang.detection import Difference, Hang, find_difference
from samestep.ranks.hang.rank_status import RankStatus
from samestep.ranks.hang.script_position import has_left_loop, is_in_step, is_in_training_loop

DIVERGED_ADVICE = (
    "Make all ranks call the same collectives in the same order, whatever their rank and their data."
)
STEPS_ADVICE = "Give every rank the same number of steps: as many batches per epoch, and as many epochs."
_BUFFERS = (
    "The forward of a DistributedDataParallel model with buffers contains a broadcast: call it on every "
    "rank, or call model.module on a single rank."
)
_EXITED = "Let all ranks end at the same step: share the decision, for example by an all_reduce of a flag."
_TENSORS = (
    "Give every rank a tensor of the same shape and type; all_gather the sizes first if they depend on data."
)
_ROOTS = "Give every rank the same root (src or dst)."
_MESSAGES = (
    "One of the ranks must send first while the other one receives; torch.distributed.batch_isend_irecv does "
    "both at once."
)
_PLACES = 4  # maximum number of ranks whose lines are in the headline
_STOPPED = (
    "Find out who stopped the process (SIGSTOP, a debugger, a suspended container); kill -CONT continues it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice that the report of a hang gives."""

    diverged: str  # for ranks that execute different calls
    steps: str  # for a rank that has left the training loop in which another one is
    slow: str  # for a rank that may only be slow


@dataclass(frozen=True, slots=True)
class HangReport:
    """The message of a hang, and whether ranks take different numbers of steps."""

    text: str
    steps_differ: bool
    headline: str = ""
    """The hang in one line: the ranks at fault, the collective, and their lines."""
    line: str = ""
    """The line of the first rank at fault, as ``file:line``; if it has none, that of a rank that waits."""


def describe(
    hang: Hang, statuses: Mapping[int, RankStatus], size: int, *, quiet: Mapping[int, str], advice: Advice
) -> HangReport:
    """Return the report of a hang: a summary, a line for each group of ranks, and what to do.

    `quiet` are the ranks that do not respond, each with the reason.
    """
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        ranks.setdefault(describe_status(statuses.get(rank), quiet.get(rank, "")), []).append(rank)
    states = [f"  {format_ranks(same)}: {state}" for state, same in ranks.items()]
    difference = None if hang.missing else find_difference(hang, statuses)
    hint, steps_differ = _hint(hang, statuses, quiet, difference, advice)
    words = _head(hang, size) if difference is None else f"the run hangs: {difference.words}."
    headline = _headline(hang, statuses, size, difference, quiet)
    lines = [place_of(statuses[rank].line) for rank in (*hang.missing, *hang.waiting) if rank in statuses]
    line = next(filter(None, lines), "")
    return HangReport("\n".join([words, *states, hint]), steps_differ, headline, line)


def _hint(
    hang: Hang,
    statuses: Mapping[int, RankStatus],
    quiet: Mapping[int, str],
    difference: Difference | None,
    advice: Advice,
) -> tuple[str, bool]:
    """Return what to do, and whether ranks take different numbers of steps."""
    if any(why.startswith("stopped") for rank, why in quiet.items() if rank in hang.missing):
        return _STOPPED, False
    if _may_be_slow(hang, statuses):
        return advice.slow, False
    if any(map(_is_buffer_broadcast, statuses.values())):
        return _BUFFERS, False
    if difference is not None and difference.kind != "calls":
        return {"data": _TENSORS, "roots": _ROOTS, "messages": _MESSAGES}[difference.kind], False
    if any(is_in_training_loop(status.line) for status in statuses.values() if status.state == "ended"):
        return _EXITED, False
    steps_differ = _steps_differ(statuses.values())
    return (advice.steps if steps_differ else advice.diverged), steps_differ


def _is_buffer_broadcast(status: RankStatus) -> bool:
    """Return whether a rank waits in the broadcast of a model's buffers, in a forward outside of a step."""
    in_buffers = status.wait is not None and status.wait.inside == "the buffers"
    return in_buffers and not is_in_step(status.line)


def _steps_differ(statuses: Collection[RankStatus]) -> bool:
    """Return whether a rank has left the training loop in which another one waits."""
    waiting = {status.line for status in statuses if status.wait is not None}
    running = {status.line for status in statuses if status.state != "ended"}
    if any(status.state == "ended" for status in statuses) and any(map(is_in_training_loop, waiting)):
        return True
    return any(has_left_loop(line, inside) for inside in waiting for line in running - {inside})


def _head(hang: Hang, size: int) -> str:
    if not hang.missing:
        since = f"for {hang.wait.age_s:.0f} s"
        return f"the run hangs: the ranks have waited for each other {since}, in different calls."
    missing = _missing(hang, size)
    waiting = f"{format_ranks(hang.waiting)} {verb(hang.waiting, 'has', 'have')} waited"
    if not hang.wait.age_s:
        return f"the ranks are out of step: {missing}, in which {waiting}."
    return f"the run hangs: {missing}, in which {waiting} for {hang.wait.age_s:.0f} s."


def _headline(
    hang: Hang,
    statuses: Mapping[int, RankStatus],
    size: int,
    difference: Difference | None,
    quiet: Collection[int],
) -> str:
    places = {
        rank: f"rank {rank} {'was last seen at ' if rank in quiet else _doing(status)}{place}"
        for rank, status in sorted(statuses.items())
        if (place := place_of(status.line)) or status.state != "running"
    }
    shown = [places[rank] for rank in (*hang.missing, *hang.waiting) if rank in places][:_PLACES]
    if not hang.missing:
        shown = list(places.values())[:_PLACES]
        words = f"ranks of {size} wait for each other" if difference is None else difference.words
        return f"{words} ({', '.join(shown)})"
    return f"{_missing(hang, size)} ({', '.join(shown)})"


def _missing(hang: Hang, size: int) -> str:
    ranks = hang.missing
    return f"{format_ranks(ranks)} of {size} {verb(ranks, 'has', 'have')} not called {hang.wait}"


def _doing(status: RankStatus) -> str:
    if status.wait is not None:
        return f"waits in {status.wait} at "
    if status.state == "ended":
        return "called sys.exit at " if status.line else "has ended its script"
    return {"left": "has destroyed its group, and is at ", "failed": "failed at "}.get(status.state, "is at ")


def _may_be_slow(hang: Hang, statuses: Mapping[int, RankStatus]) -> bool:
    gone = (statuses[rank].state in ("ended", "left") for rank in hang.missing if rank in statuses)
    return bool(hang.missing) and not any(gone)


def place_of(line: str) -> str:
    """Return the ``file:line`` of a line as ``file:line: text``."""
    found = re.match(r"(.*?:\d+)(?:: |$)", line)
    return found[1] if found else ""


def describe_status(status: RankStatus | None, quiet: str = "") -> str:
    """Return what a rank does as text; `quiet` is why it does not respond, if it does not."""
    if status is None:
        return "no status received"
    line, after = status.line or "outside of the script", f"after {status.collectives} collectives"
    if status.state == "running" and quiet:
        return f"{quiet}, last seen at {line}"
    if status.wait is not None:
        part = f" ({status.wait.inside} of DistributedDataParallel)" if status.wait.inside else ""
        if status.state == "failed":
            data = next(
                (f" of {one[2]}" for one in status.wait.recent if one[0] == status.wait.seq and one[2]), ""
            )
            return f"lost its connection in {status.wait}{data}{part} at {line}"
        return f"waiting in {status.wait}{part} at {line}"
    return {
        "ended": f"ended its script {after}" + (f", by sys.exit at {line}" if status.line else ""),
        "failed": f"failed {after}, at {line}",
        "left": f"destroyed its process group {after}, at {line}",
        "running": f"in no collective {after}, at {line}",
    }[status.state]
