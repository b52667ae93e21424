"""Describes the failure of a worker, and finds the cause among several failures."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from samestep.launch.local.hosting import Ending

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

    Args:
        failures: failures in order of their detection; at least one.
    """
    return min(failures, key=lambda failure: failure.weight)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
