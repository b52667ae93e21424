"""Decides whether workers are restarted after a failure, and after which pause."""

import signal

from samestep.launch.local.failure import Failure

_LONGEST_PAUSE_S = 30.0
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class Restarts:
    """Restart policy of one job, which counts its failures and allows `most` restarts.

    Workers that have completed steps since the previous failure are restarted after a second. Otherwise the
    pause doubles, up to 30 seconds. A failure that returns at the same step is taken to return forever.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0  # number of restarts so far
        self.pause_s = 0.0  # seconds to wait before the next restart, after the last failure
        self.is_same = False  # whether the last failure was the same as the previous one, at the same step
        self._before: tuple[tuple[int, str, str], int | None] | None = None

    @property
    def left(self) -> int:
        """Number of restarts that are left."""
        return 0 if self.is_same else self.most - self.done

    def fail(self, cause: Failure, step: int | None) -> None:
        """Record a failure of the workers, and their last step over all restarts, if it is known."""
        first = cause.message.strip().partition("\n")[0]
        now, before = ((cause.exit_code, cause.error, first), step), self._before
        step_before = None if before is None else before[1]
        self.is_same = step is not None and now == before and _is_its_own(cause)
        advanced = step is not None and step_before is not None and step_before < step
        self.pause_s = 1.0 if advanced or not self.pause_s else min(2 * self.pause_s, _LONGEST_PAUSE_S)
        self._before = now

    def in_words(self) -> str:
        """Return the decision after the last failure, as the end of a sentence; empty without restarts."""
        if self.is_same and self.most > self.done:
            return "; not started again, because the same failure has returned at the same step"
        if not self.left:
            return ""
        return f"; starting afresh in {self.pause_s:g} s, {self.left} more time(s) allowed"

    def again(self) -> None:
        """Record that the workers are restarted."""
        self.done += 1


def _is_its_own(cause: Failure) -> bool:
    """Return whether the workers failed by themselves, rather than by a signal of another process."""
    return cause.exit_code >= 0 or -cause.exit_code in _OWN_SIGNALS
