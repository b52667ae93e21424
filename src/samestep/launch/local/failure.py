"""Describes the failure of a worker, and finds the cause among several failures.

The line of a worker that a signal killed is that of the Python stack which `faulthandler` wrote as the worker
died. No stack exists of a worker that was killed by SIGKILL; then the line is that of its last status, which
can be half a second old.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from samestep.base.errors import StepsDiffer
from samestep.base.folders import shown
from samestep.base.worker_records import Frame
from samestep.launch.local.hosting import Ending
from samestep.ranks.hang.detection import STEPS_ADVICE, describe_status, place_of
from samestep.ranks.hang.rank_status import RankStatus
from samestep.ranks.hang.script_position import has_left_loop, is_script, name_of_blocking, with_text

_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "connectfullmesh failed",
    "connection was likely closed",
    "remote process exited",
    "failed to recv",
)
"""Parts of the errors of Gloo, NCCL and torch's store on a rank whose peer is gone."""
_CONSEQUENT_TYPES = ("PeerLost", "DistNetworkError", "KeyboardInterrupt")
_OF_SPAWNED = ("ProcessRaisedException", "ProcessExitedException")
"""Errors of a script whose worker has failed; the message begins with the worker's failure in one line."""
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The order in which failures of one moment are reported.
_CAUSE, _ABORT, _CONSEQUENCE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Ending):
    """Failure of one worker: the end of its program, and its place.

    The exit code is that of the process: the negative signal number if a signal killed it.
    """

    rank: int
    local_rank: int
    pid: int

    @property
    def code(self) -> int:
        """Exit code as a shell reports it: 128 + signal for a worker killed by one."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    @property
    def signal_name(self) -> str:
        """Number and name of the signal that killed the worker: ``9 (SIGKILL)``."""
        return f"{-self.exit_code} ({_signal_name(-self.exit_code)})"

    @property
    def weight(self) -> int:
        """Distance from a cause: 0 a cause, 1 a possible cause, 2 a consequence of another rank's failure."""
        if self.error:
            return _CONSEQUENCE if follows_from_another(self.error, self.message) else _CAUSE
        if -self.exit_code in _ASKED_TO_END or self.exit_code == 128 + signal.SIGINT:
            return _CONSEQUENCE
        return _ABORT if self.exit_code == -signal.SIGABRT else _CAUSE

    def describe(self, size: int) -> str:
        """Return rank, cause and code in one line."""
        if self.headline:
            return self.headline
        if self.error in _OF_SPAWNED and self.message.startswith("rank "):
            return self.message.partition("\n")[0]
        if self.exit_code < 0:
            how = f"was killed by signal {self.signal_name}"
        elif self.error:
            how = f"failed with {self.error} (exit code {self.exit_code})"
        else:
            how = f"ended with exit code {self.exit_code}"
        at = f" at {self.line}" if self.line else ""
        at += f": {self.unwritten}" if self.unwritten else ""
        return f"rank {self.rank} of {size} (local rank {self.local_rank}, pid {self.pid}) {how}{at}"


def follows_from_another(error: str, message: str) -> bool:
    """Return whether an exception is a consequence of another rank's failure."""
    text = message.lower()
    return error in _CONSEQUENT_TYPES or any(words in text for words in _CONSEQUENCES)


def root_cause(failures: Iterable[Failure]) -> Failure:
    """Return the first failure among those that are not a consequence of another.

    The failures, at least one, are in order of their detection.
    """
    return min(failures, key=lambda failure: failure.weight)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


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
"""The advice by signal; `_SENT` for all others."""
_MISMATCH = (
    "Gloo aborts a process that receives more data than it expects. Make all ranks call the same collectives "
    "in the same order, with tensors of the same shape and type."
)


def explain_death(
    failure: Failure, frames: Sequence[Frame], statuses: Mapping[int, RankStatus], *, size: int
) -> Failure:
    """Return the failure of a worker that a signal killed, with its place, a report and what to do.

    `frames` is the stack of its main thread as it died, innermost first; both it and the last statuses of all
    ranks may be empty.
    """
    exact = next((f"{shown(frame.file)}:{frame.line}" for frame in frames if is_script(frame.file)), "")
    line = with_text(exact) if exact else statuses[failure.rank].line if failure.rank in statuses else ""
    if not line:
        return failure
    peers = {rank: status for rank, status in sorted(statuses.items()) if rank != failure.rank}
    op = name_of_blocking(frames)
    is_mismatch = failure.exit_code == -signal.SIGABRT and bool(op)
    where = f"in {_collective_of(op, peers)} at" if op else "at" if exact else "and was last seen at"
    left = _rank_that_left(failure.rank, line, peers) if is_mismatch else None
    advice = _ADVICE.get(-failure.exit_code, _SENT)
    if is_mismatch:
        advice = _MISMATCH if left is None else STEPS_ADVICE
    report = "\n".join(
        [
            f"rank {failure.rank} of {size} was killed by signal {failure.signal_name} {where} {line}",
            *(f"  rank {rank}: {describe_status(status)}" for rank, status in peers.items()),
            advice,
        ]
    )
    return replace(
        failure,
        rank=failure.rank if left is None else left,
        error="" if left is None else StepsDiffer.__name__,
        message=report,
        traceback="".join(f"samestep: {text}\n" for text in f"error: {report}".splitlines()),
        line=place_of(line if left in (None, failure.rank) else peers[left].line),
        headline=_headline(failure, f"{where} {place_of(line)}", peers, size=size, left=left),
    )


def _headline(
    failure: Failure, where: str, peers: Mapping[int, RankStatus], *, size: int, left: int | None
) -> str:
    states = (
        f"rank {rank} was in {status.wait} at {place_of(status.line)}"
        for rank, status in peers.items()
        if status.wait is not None
    )
    words = [f"{failure.describe(size)} {where}", *islice(states, _PLACES)]
    if left is not None:
        words.insert(0, f"rank {left} of {size} has left the training loop in which another rank is")
    return "; ".join(words)


def _collective_of(op: str, peers: Mapping[int, RankStatus]) -> str:
    """Return a collective with its number, which is that of the ranks that communicated with the dead one."""
    waits = [status.wait for status in peers.values() if status.wait is not None]
    numbers = {wait.seq for wait in waits if wait.seq is not None}
    return f"{op} #{numbers.pop()}" if len(numbers) == 1 else op


def _rank_that_left(rank: int, line: str, peers: Mapping[int, RankStatus]) -> int | None:
    """Return the rank that has left the training loop in which another one is, if one has."""
    for peer, status in peers.items():
        if has_left_loop(line, status.line):
            return rank
        if has_left_loop(status.line, line):
            return peer
    return None
