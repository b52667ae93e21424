"""Which phase of a step a script is in: a list of moments at which that changed, so that all phases add up.

::

    other | data | forward ...  exposed_sync | forward | backward ... | exposed_sync | optimizer |
          ^      ^              ^            ^         ^              ^              ^           ^ step ends
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic

from samestep.base.phases import BACKWARD, EXCHANGE, OTHER
from samestep.measure.clock_file import STEP_PHASES
from samestep.measure.instants import Instant, Instants
from samestep.watch.stolen import COMPUTING, Processor, Readings, Stolen, had

MOST_MARKS = 1 << 16
"""Of a step: changes of phase and their moments. One that has more has no end, as a graph's replay has."""


class Phases(Generic[Instant]):
    """The phase that a script is in now, and those of the step under way.

    Marks lie one behind the other in one list. Where they become `MOST_MARKS` their time is told as `OTHER`.

    Args:
        now: returns the moment.
        processor: returns what the script's thread has had of its processor by then.
    """

    def __init__(self, now: Callable[[], Instant], processor: Callable[[], Processor]) -> None:
        self._now, self._processor = now, processor
        self._readings: Readings | None = None
        """Of the processor, in this step; None where it is not asked for."""
        self.phase = OTHER
        self._marks: list[Any] = [OTHER, now()]
        """Each phase that has ended, and when; the first is the end of the step before."""

    def switch(self, phase: str) -> str:
        """Be in `phase` from now on; return the one that this ends."""
        before = self.phase
        if phase != before:
            self.mark(before)
            if self._readings is not None and (before in COMPUTING or phase in COMPUTING):
                self._read(before)
            self.phase = phase
        return before

    def _read(self, before: str) -> None:
        assert self._readings is not None
        self._readings += before, self._processor()
        if len(self._readings) >= MOST_MARKS:
            del self._readings[:-2]

    def mark(self, phase: str) -> None:
        """Note that the script has been in `phase` since the last mark."""
        marks = self._marks
        marks += phase, self._now()
        if len(marks) >= MOST_MARKS:
            marks[2:] = OTHER, marks[-1]

    def cut(self) -> list[Any]:
        """End the step now, and begin the next with what is none of its phases; return the marks."""
        marks = self._marks
        marks += self.phase, self._now()
        self._marks, self.phase = marks[-2:], OTHER
        return marks

    def begin_readings(self) -> None:
        """Read the processor from now on."""
        self._readings = []

    def take_readings(self) -> Readings | None:
        """Read it no more, and return what was read; None where it was not."""
        found, self._readings = self._readings, None
        return found


class Then:
    """A context that does something at its end, and keeps nothing: it may be entered again within itself.

    Args:
        then: does it.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._then()


@dataclass(slots=True)
class Clocked(Generic[Instant]):
    """One step as it was clocked.

    Args:
        number: which one of the run, from 0.
        marks: see `Phases.cut`.
        samples: rows that models were called with to learn from, this worker's own.
        evaluated: whether there was an evaluation in it.
        sent: bytes of gradients that this worker gave to the exchange; None where nobody can say.
        hides: whether its backward hid an exchange.
        readings: of the processor, which such an exchange needs too; None where it was not read.
        loaded: samples of the batches that loaders gave; None where nobody can tell.
        elements: numbers in the tensors that models were called with to learn from.
    """

    number: int
    marks: list[Any]
    samples: int
    evaluated: bool
    sent: int | None = None
    hides: bool = False
    readings: Readings | None = None
    loaded: int | None = None
    elements: int = 0

    @property
    def end(self) -> Instant:
        """When it ended."""
        instant: Instant = self.marks[-1]
        return instant

    def line(self, instants: Instants[Instant], stolen: Stolen) -> dict[str, Any]:
        """Return what is written of it, once its last moment has passed."""
        seconds = dict.fromkeys(STEP_PHASES, 0.0)
        for phase, (before, after) in zip(self.marks[2::2], pairwise(self.marks[1::2]), strict=True):
            seconds[phase] += instants.between(before, after)
        if self.hides:
            exchange = stolen.of(seconds, None if self.readings is None else had(self.readings))
            seconds[BACKWARD] -= exchange
            seconds[EXCHANGE] += exchange
        said: dict[str, Any] = {
            "step": self.number,
            "at": instants.epoch_s(self.marks[1]),
            "seconds": sum(seconds.values()),
            "samples": self.samples,
            "loaded": self.loaded,
            "elements": self.elements,
            "exchange_bytes": self.sent,
            **seconds,
        }
        return {**said, "evaluated": True} if self.evaluated else said
