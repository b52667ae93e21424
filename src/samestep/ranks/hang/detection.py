"""Detects hangs from the statuses of all ranks, ranks that wait for one that does not arrive; reports them.

If all ranks of a group wait for each other, it finds how their calls differ. A report is a summary, a line
for each group of ranks, and what to do.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from samestep.base.units import format_ranks, verb
from samestep.ranks.hang.rank_status import MESSAGES, RankStatus, Wait
from samestep.ranks.hang.script_position import has_left_loop, is_in_step, is_in_training_loop


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
    statuses = {
        rank: replace(status, wait=None) if rank in quiet else status for rank, status in statuses.items()
    }
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


def chain_of_waits(rank: int, peers: Mapping[int, int | None]) -> list[int]:
    """Return `rank`, the rank it waits for, and so on.

    `peers` has the rank that each rank waits for. The chain ends at a rank that waits for none, or with a
    rank that it had before.
    """
    chain = [rank]
    while (peer := peers.get(chain[-1])) is not None:
        chain.append(peer)
        if peer in chain[:-1]:
            break
    return chain


def find_circle(rank: int, peers: Mapping[int, int | None]) -> list[int]:
    """Return the ranks, each waiting for the next, from `rank` back to it; or none. See `chain_of_waits`."""
    chain = chain_of_waits(rank, peers)
    return chain[:-1] if chain[-1] == rank else []


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
    current = None if status is None else status.wait
    return current is not None and (current.group, current.seq) == (wait.group, wait.seq)


def _first_causes(missing: Sequence[int], statuses: Mapping[int, RankStatus]) -> tuple[int, ...]:
    """Remove the ranks that wait for others themselves, unless all do."""
    free = tuple(r for r in missing if r not in statuses or statuses[r].wait is None)
    return free or tuple(missing)


def _waits_differ(ranks: Sequence[int], statuses: Mapping[int, RankStatus], wait: Wait) -> bool:
    """Return whether all ranks wait in different calls: a call in which all ranks wait may only be slow."""
    waits = [statuses[rank].wait for rank in ranks if rank in statuses]
    calls = {
        (waiting.op, waiting.seq, waiting.group, waiting.root) for waiting in waits if waiting is not None
    }
    return len(waits) == len(ranks) and None not in waits and (len(calls) > 1 or _is_from_any(wait))


def _sends_in_circle(rank: int, statuses: Mapping[int, RankStatus]) -> bool:
    """Return whether ranks send to each other; an exchange may wait while messages are on the way."""
    peers = {
        sender: status.wait.peer
        for sender, status in statuses.items()
        if status.wait is not None and status.wait.op in ("send", "recv")
    }
    return bool(find_circle(rank, peers))


Kind: TypeAlias = Literal["calls", "data", "roots", "messages"]
_OF_MESSAGE = {"send": "sends to", "recv": "receives from", "exchange": "exchanges with"}


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
        f"rank {rank} {_OF_MESSAGE[wait.op]} {'any rank' if wait.peer is None else f'rank {wait.peer}'}"
        for rank, wait in waits.items()
    ]
    return Difference("messages", f"the ranks wait for each other: {', '.join(each)}")


def _in_recent(waits: Mapping[int, Wait]) -> Difference | None:
    """Return the difference between the recorded collectives of one number."""
    recorded = {rank: {call[0]: call[1:] for call in wait.recent} for rank, wait in waits.items()}
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
_ROOTS_ADVICE = "Give every rank the same root (src or dst)."
_MESSAGES_ADVICE = (
    "One of the ranks must send first while the other one receives; torch.distributed.batch_isend_irecv does "
    "both at once."
)
_PLACES = 4  # maximum number of ranks whose lines are in the headline: a guess at what is read
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
        return {"data": _TENSORS, "roots": _ROOTS_ADVICE, "messages": _MESSAGES_ADVICE}[
            difference.kind
        ], False
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
    missing = _missing_text(hang, size)
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
    return f"{_missing_text(hang, size)} ({', '.join(shown)})"


def _missing_text(hang: Hang, size: int) -> str:
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
    match = re.match(r"(.*?:\d+)(?:: |$)", line)
    return match[1] if match else ""


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
                (f" of {call[2]}" for call in status.wait.recent if call[0] == status.wait.seq and call[2]),
                "",
            )
            return f"lost its connection in {status.wait}{data}{part} at {line}"
        return f"waiting in {status.wait}{part} at {line}"
    return {
        "ended": f"ended its script {after}" + (f", by sys.exit at {line}" if status.line else ""),
        "failed": f"failed {after}, at {line}",
        "left": f"destroyed its process group {after}, at {line}",
        "running": f"in no collective {after}, at {line}",
    }[status.state]
