"""Reports the death of a worker by a signal: its line of the script, where the other ranks are, what to do.

The line is that of the Python stack which `faulthandler` wrote as the worker died. No stack exists of a
worker that was killed by SIGKILL; then the line is that of its last status, which can be half a second old.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from samestep.base.errors import StepsDiffer
from samestep.base.stack_dumps import Frame
from samestep.launch.local.failure import Failure
from samestep.ranks.hang.loop_end import has_left_loop
from samestep.ranks.hang.rank_status import RankStatus
from samestep.ranks.hang.report import STEPS_ADVICE, describe_status, place_of
from samestep.ranks.hang.script_position import is_script, name_of_blocking, with_text

_PLACES = 4  # maximum number of other ranks in the headline
_CRASHED = (
    "Native code crashed: an extension, or a call through ctypes, got a wrong pointer. Run this line on one "
    "worker, and update or replace the library that it calls."
)
_SENT = "A scheduler, another program or the script itself has sent this signal."
_ADVICE: Mapping[int, str] = {
    **dict.fromkeys([signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP], _CRASHED),
    signal.SIGKILL: "The kernel sends SIGKILL when memory runs out (see dmesg): give each worker more "
    "memory, a smaller batch or fewer loader processes. A scheduler sends it at a limit of memory or time.",
    signal.SIGABRT: "Native code called abort(); its message is above.",
    signal.SIGBUS: "Native code used missing memory: /dev/shm is full, or a mapped file was cut.",
    signal.SIGXCPU: "The worker has used the CPU time that it may use (ulimit -t).",
}
"""What to do by signal; without an entry it is `_SENT`."""
_MISMATCH = (
    "Gloo aborts a process that receives more data than it expects. Make all ranks call the same collectives "
    "in the same order, with tensors of the same shape and type."
)


def explain_death(
    failure: Failure, frames: Sequence[Frame], statuses: Mapping[int, RankStatus], *, size: int
) -> Failure:
    """Return the failure of a worker that a signal killed, with its place, a report and what to do.

    Args:
        failure: the failure.
        frames: the stack of its main thread as it died, innermost first; may be empty.
        statuses: the last statuses of all ranks; may be empty.
        size: number of ranks.
    """
    exact = next((f"{frame.file}:{frame.line}" for frame in frames if is_script(frame.file)), "")
    line = with_text(exact) if exact else statuses[failure.rank].line if failure.rank in statuses else ""
    if not line:
        return failure
    others = {rank: one for rank, one in sorted(statuses.items()) if rank != failure.rank}
    op = name_of_blocking(frames)
    is_mismatch = failure.exit_code == -signal.SIGABRT and bool(op)
    where = f"in {_collective_of(op, others)} at" if op else "at" if exact else "and was last seen at"
    left = _rank_that_left(failure.rank, line, others) if is_mismatch else None
    advice = _ADVICE.get(-failure.exit_code, _SENT)
    if is_mismatch:
        advice = _MISMATCH if left is None else STEPS_ADVICE
    report = "\n".join(
        [
            f"rank {failure.rank} of {size} was killed by signal {failure.signal_name} {where} {line}",
            *(f"  rank {rank}: {describe_status(status)}" for rank, status in others.items()),
            advice,
        ]
    )
    return replace(
        failure,
        rank=failure.rank if left is None else left,
        error="" if left is None else StepsDiffer.__name__,
        message=report,
        traceback="".join(f"samestep: {one}\n" for one in f"error: {report}".splitlines()),
        line=place_of(line if left in (None, failure.rank) else others[left].line),
        headline=_headline(failure, f"{where} {place_of(line)}", others, size=size, left=left),
    )


def _headline(
    failure: Failure, where: str, others: Mapping[int, RankStatus], *, size: int, left: int | None
) -> str:
    states = (
        f"rank {rank} was in {one.wait} at {place_of(one.line)}"
        for rank, one in others.items()
        if one.wait is not None
    )
    words = [f"{failure.describe(size)} {where}", *islice(states, _PLACES)]
    if left is not None:
        words.insert(0, f"rank {left} of {size} has left the training loop in which another rank is")
    return "; ".join(words)


def _collective_of(op: str, others: Mapping[int, RankStatus]) -> str:
    """Return a collective with its number, which is that of the ranks that communicated with the dead one."""
    numbers = {one.wait.seq for one in others.values() if one.wait is not None and one.wait.seq is not None}
    return f"{op} #{numbers.pop()}" if len(numbers) == 1 else op


def _rank_that_left(rank: int, line: str, others: Mapping[int, RankStatus]) -> int | None:
    """Return the rank that has left the training loop in which another one is, if one has."""
    for other, status in others.items():
        if has_left_loop(line, status.line):
            return rank
        if has_left_loop(status.line, line):
            return other
    return None
