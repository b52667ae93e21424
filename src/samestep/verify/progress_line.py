"""Shows the current step of a run on the terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from samestep.base.console import is_quiet
from samestep.base.units import seconds_text
from samestep.verify.run_length import RunLength
from samestep.verify.trace import Step

_PAUSE_S = 0.2  # least time in seconds between two changes of the line


@dataclass(slots=True)
class ProgressLine:
    """A line on the terminal that a worker rewrites while its own output is discarded."""

    file: int | None  # descriptor of the terminal; None for no line
    title: str  # begins the line
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    _shown_s: float = field(init=False, default=float("-inf"))
    _began_s: float | None = field(init=False, default=None)  # time at the end of the first step

    def show(self, step: int, total: int | None = None) -> None:
        """Show the number of a finished step, from 0, and the time left if the `total` is known."""
        now = self.clock()
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
