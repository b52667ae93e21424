"""Whether workers are started again after a failure, and after which pause."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from samestep.launch.failure import Failure

_LONGEST_PAUSE_S = 30.0
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True, slots=True)
class _Record:
    """A failure, as far as another can be compared with it."""

    kind: tuple[int, str, str]
    step: int | None


class Restarts:
    """Counts the failures of one job, and decides after each.

    Workers that have made steps since the failure before are started again after a second. Otherwise the
    pause doubles, up to 30 seconds. A failure that returns at the same step returns for ever.

    Args:
        most: how often workers may be started again.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0
        """How often they were started again."""
        self.pause_s = 0.0
        """How long to wait before they are, after the last failure."""
        self.is_same = False
        """Whether the last failure was the same as the one before, at the same step."""
        self._before: _Record | None = None

    @property
    def left(self) -> int:
        """How many more times the workers may be started again."""
        return 0 if self.is_same else self.most - self.done

    def fail(self, cause: Failure, step: int | None) -> None:
        """Take note of a failure.

        Args:
            cause: how the workers failed.
            step: the last one they made, over all starts; None where it is unknown.
        """
        first = cause.message.strip().partition("\n")[0]
        now, before = _Record((cause.exit_code, cause.error, first), step), self._before
        known = before is not None and step is not None and before.step is not None
        self.is_same = known and now == before and _is_its_own(cause)
        advanced = known and before is not None and (before.step or 0) < (step or 0)
        self.pause_s = 1.0 if advanced or not self.pause_s else min(2 * self.pause_s, _LONGEST_PAUSE_S)
        self._before = now

    def in_words(self) -> str:
        """Return what follows the last failure, as the end of a sentence; empty without restarts."""
        if self.is_same and self.most > self.done:
            return "; not started again, because the same failure has returned at the same step"
        if not self.left:
            return ""
        return f"; starting afresh in {self.pause_s:g} s, {self.left} more time(s) allowed"

    def again(self) -> None:
        """Take note that the workers are started again."""
        self.done += 1


def _is_its_own(cause: Failure) -> bool:
    """Whether the workers failed by themselves, rather than by a signal from elsewhere."""
    return cause.exit_code >= 0 or -cause.exit_code in _OWN_SIGNALS


def pause(seconds: float, *, end: Callable[[], bool], look_s: float = 0.1) -> None:
    """Wait so long, or until `end` says that it is no use any more."""
    deadline = time.monotonic() + seconds
    while not end() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, look_s))
