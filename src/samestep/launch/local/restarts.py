"""Decides whether workers are restarted after a failure, and after which pause."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from samestep.launch.local.failure import Failure

_LONGEST_PAUSE_S = 30.0
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True, slots=True)
class _Record:
    """Comparable part of a failure."""

    kind: tuple[int, str, str]
    step: int | None


class Restarts:
    """Restart policy of one job, which counts its failures and decides after each.

    Workers that have completed steps since the previous failure are restarted after a second. Otherwise the
    pause doubles, up to 30 seconds. A failure that returns at the same step is taken to return forever.

    Args:
        most: maximum number of restarts.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0
        """Number of restarts so far."""
        self.pause_s = 0.0
        """Seconds to wait before the next restart, after the last failure."""
        self.is_same = False
        """Whether the last failure was the same as the previous one, at the same step."""
        self._before: _Record | None = None

    @property
    def left(self) -> int:
        """Number of restarts that are left."""
        return 0 if self.is_same else self.most - self.done

    def fail(self, cause: Failure, step: int | None) -> None:
        """Record a failure.

        Args:
            cause: failure of the workers.
            step: their last step, over all restarts; None if unknown.
        """
        first = cause.message.strip().partition("\n")[0]
        now, before = _Record((cause.exit_code, cause.error, first), step), self._before
        known = before is not None and step is not None and before.step is not None
        self.is_same = known and now == before and _is_its_own(cause)
        advanced = known and before is not None and (before.step or 0) < (step or 0)
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


def pause(seconds: float, *, end: Callable[[], bool], look_s: float = 0.1) -> None:
    """Wait for some seconds, or until `end` returns True."""
    deadline = time.monotonic() + seconds
    while not end() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, look_s))
