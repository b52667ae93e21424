"""Decides after which step a verified script is stopped, and shows the current step on the terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from samestep.base.console import is_quiet
from samestep.base.units import seconds_text
from samestep.verify.tensor_summary import rounded_keys
from samestep.verify.trace import Step

TOTAL_S = 120.0
"""Time in seconds that all runs of a verification take together, if the user gives no number of steps.

It is a guess at how long a user waits, as the numbers of steps below are at how many are enough.
"""
LEAST_STEPS = 20
"""Steps of a run that has reached an evaluation and a second epoch earlier."""
LEAST_STEPS_UNEVALUATED = 200
"""Steps of a run that has reached two epochs, but no evaluation."""
LEAST_STEPS_OF_SLOW_SCRIPTS = 5
"""Steps of a run whose time is over; fewer show no change of samples or of learning rates."""
LEAST_STEPS_OF_RANKS = 60
"""Steps of a run whose reference has several ranks, which have to end it at one step: a guess."""
MOST_STEPS = 1000
"""Steps of a run that reaches no second epoch; its records stay small."""


class RunLength(Protocol):
    """The length of a run."""

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """Return whether a step is the last one; called once for each step of a rank, in order.

        `optimizers` is the number of optimizers that have stepped.
        """

    def total(self, optimizers: int) -> int | None:  # noqa: ARG002 - of the interface
        """Return the number of steps with this number of optimizers; None if it is unknown."""
        return None


@dataclass(frozen=True, slots=True)
class FixedLength:
    """A number of steps, of all optimizers together or of each."""

    steps: int
    of_each: bool = False

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        return step.index + 1 >= self.total(optimizers)

    def total(self, optimizers: int) -> int:
        """See `RunLength`."""
        return self.steps * max(1, optimizers) if self.of_each else self.steps


@dataclass(slots=True, kw_only=True)
class UntilEvaluated(RunLength):
    """As many steps as contain the first evaluation and the begin of a second epoch.

    A script without evaluation is stopped after two epochs and `LEAST_STEPS_UNEVALUATED` steps.
    """

    _known: set[float] = field(init=False, default_factory=set)
    """Keys of the samples of the first epoch."""
    _epoch: int | None = field(init=False, default=None)
    """Number of steps before the second epoch; None in the first one."""
    _has_evaluated: bool = field(init=False, default=False)

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        del optimizers
        made = step.index + 1
        self._note(step)
        return made >= MOST_STEPS or (self._epoch is not None and made >= self._needed(self._epoch))

    def _needed(self, epoch: int) -> int:
        """Return the number of steps of a run that has reached its second epoch."""
        return LEAST_STEPS if self._has_evaluated else max(2 * epoch, LEAST_STEPS_UNEVALUATED)

    def _note(self, step: Step) -> None:
        self._has_evaluated |= bool(step.evaluated)
        if self._epoch is None:
            keys = rounded_keys(step.samples)
            if step.passes or keys & self._known:  # samples with noise do not repeat
                self._epoch = step.index
            self._known |= keys


@dataclass(slots=True)
class UntilEvaluatedAfter(RunLength):
    """As many steps as contain, after the first `steps`, an evaluation and the begin of another epoch."""

    steps: int
    _passes: int = field(init=False, default=0)  # passes over the loader in the first steps
    _has_evaluated: bool = field(init=False, default=False)

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        del optimizers
        made = step.index + 1
        if made <= self.steps:
            self._passes = step.passes
            return False
        self._has_evaluated |= bool(step.evaluated)
        is_later = self._has_evaluated and step.passes > self._passes
        return made >= self.steps + (LEAST_STEPS if is_later else MOST_STEPS)


@dataclass(frozen=True, slots=True)
class EndedAfter:
    """A number of steps after which a run gets a signal, and the number of those that it can make then."""

    steps: int
    more: int  # further steps of a script that handles the signal

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        del optimizers
        made = step.index + 1
        return made == self.steps or made >= self.steps + self.more

    def total(self, optimizers: int) -> int:
        """See `RunLength`."""
        del optimizers
        return self.steps


@dataclass(slots=True)
class WithinTime:
    """A length, or as many steps as fit a time limit."""

    length: RunLength
    limit_s: float  # the time limit in seconds, from the first step on
    least: int = LEAST_STEPS_OF_SLOW_SCRIPTS  # steps that are made whatever time they take
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    _first_s: float | None = field(init=False, default=None)

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        now = self.clock()
        self._first_s = now if self._first_s is None else self._first_s
        is_late = step.index + 1 >= self.least and now - self._first_s >= self.limit_s
        return self.length.is_reached(step, optimizers=optimizers) or is_late

    def total(self, optimizers: int) -> int | None:
        """See `RunLength`."""
        return self.length.total(optimizers)


_PAUSE_S = 0.2  # least time in seconds between two changes of the line: a guess


@dataclass(slots=True)
class ProgressLine:
    """A line on the terminal that a worker rewrites while its own output is discarded."""

    file: int | None  # descriptor of the terminal; None for no line
    title: str  # begins the line
    _shown_s: float = field(init=False, default=float("-inf"))
    _began_s: float | None = field(init=False, default=None)  # time at the end of the first step

    def show(self, step: int, total: int | None = None) -> None:
        """Show the number of a finished step, from 0, and the time left if the `total` is known."""
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        if self.file is None or now - self._shown_s < _PAUSE_S:
            return
        self._shown_s = now
        of = f" of {total}" if total else ""
        if total and step:
            left_s = (now - self._began_s) / step * (total - step - 1)
            of += f", about {seconds_text(round(left_s))} left"
        with suppress(OSError):  # a closed terminal stops no run
            os.write(self.file, f"\r{self.title}: step {step + 1}{of}\x1b[K".encode())


@dataclass(frozen=True, slots=True)
class Shown:
    """The length of a run, which shows each step as it ends."""

    length: RunLength
    line: ProgressLine

    def is_reached(self, step: Step, *, optimizers: int) -> bool:
        """See `RunLength`."""
        self.line.show(step.index, self.length.total(optimizers))
        return self.length.is_reached(step, optimizers=optimizers)

    def total(self, optimizers: int) -> int | None:
        """See `RunLength`."""
        return self.length.total(optimizers)


@contextmanager
def progress_line(title: str) -> Iterator[ProgressLine]:
    """Yield a line for the workers that are forked in the block, and clear it at the end.

    It shows nothing unless stderr is a terminal.
    """
    if not sys.stderr.isatty() or is_quiet():
        yield ProgressLine(None, title)
        return
    file = os.dup(2)
    try:
        yield ProgressLine(file, title)
        with suppress(OSError):
            os.write(file, b"\r\x1b[K")
    finally:
        os.close(file)
