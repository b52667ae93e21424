"""What a worker that failed leaves behind, and which of several failures was the cause."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

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
"""What ranks say when another rank went away under them (Gloo, NCCL, torch's store)."""

_CONSEQUENT_TYPES = ("PeerLost", "DistNetworkError", "KeyboardInterrupt")
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Which failures of one moment are told first.
_CAUSE, _ABORT, _CONSEQUENCE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one worker failed.

    Args:
        exit_code: as the operating system gives it; the negative signal number if one killed it.
        error: name of the exception's class, where there was one.
        message: the exception's text.
        traceback: the whole report as Python prints it, ending in a newline; empty where there is none.
        unwritten: which file could not be written and why, where that is the cause.
    """

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    error: str = ""
    message: str = ""
    traceback: str = ""
    unwritten: str = ""

    @property
    def code(self) -> int:
        """The exit code as a shell counts it: 128 + signal for a worker killed by one."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    @property
    def weight(self) -> int:
        """How far this is from a cause: 0 a cause, 1 perhaps, 2 what follows when another rank goes away."""
        if self.error:
            return _CONSEQUENCE if follows_from_another(self.error, self.message) else _CAUSE
        if -self.exit_code in _ASKED_TO_END or self.exit_code == 128 + signal.SIGINT:
            return _CONSEQUENCE
        return _ABORT if self.exit_code == -signal.SIGABRT else _CAUSE

    def describe(self, size: int) -> str:
        """Return rank, cause and code in one line."""
        if self.exit_code < 0:
            how = f"was killed by signal {-self.exit_code} ({_signal_name(-self.exit_code)})"
        elif self.error:
            why = f": {self.unwritten}" if self.unwritten else ""
            how = f"failed with {self.error} (exit code {self.exit_code}){why}"
        else:
            how = f"ended with exit code {self.exit_code}"
        return f"rank {self.rank} of {size} (local rank {self.local_rank}, pid {self.pid}) {how}"


def follows_from_another(error: str, message: str) -> bool:
    """Return whether an exception is what ranks raise when another rank went away under them."""
    text = message.lower()
    return error in _CONSEQUENT_TYPES or any(words in text for words in _CONSEQUENCES)


def root_cause(failures: Iterable[Failure]) -> Failure:
    """Return the failure that came first among those that are not another's consequence.

    Args:
        failures: in the order in which they were noticed; at least one.
    """
    return min(failures, key=lambda failure: failure.weight)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
