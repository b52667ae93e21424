"""Records the instants at which a step changes its phase, so that the phases add up to the step.

::

    other | data | forward ...  exposed_sync | forward | backward ... | exposed_sync | optimizer |
          ^      ^              ^            ^         ^              ^              ^           ^ step ends
"""

from dataclasses import dataclass
from typing import Any

from samestep.base.step_phases import ALL, BACKWARD, EXCHANGE, OTHER
from samestep.observe.clock.cpu_contention import COMPUTING, ContentionEstimator, CpuUse, Readings, cpu_use
from samestep.observe.clock.instants import Instants

MAX_MARKS = 1 << 16
"""Maximum length of a step's list of marks; only a step that never ends exceeds it, as with graph replays."""


class Phases:
    """The current phase of a script, and the phases of its current step.

    Marks are a flat list. Once it has `MAX_MARKS` items, the time so far becomes `OTHER`. The reader of the
    events sets the current instant.
    """

    def __init__(self, instant: Any) -> None:
        self.instant = instant
        self.cpu = CpuUse()  # CPU time that the script's thread has had until that instant
        self._readings: Readings | None = None  # CPU readings of this step; None if it is not sampled
        self.phase = OTHER
        self._marks: list[Any] = [OTHER, self.instant]
        """Each phase that has ended and its end; the first mark is the end of the step before."""

    def switch(self, phase: str) -> str:
        """Begin `phase`; return the phase that this ends."""
        before = self.phase
        if phase != before:
            self.mark(before)
            if self._readings is not None and (before in COMPUTING or phase in COMPUTING):
                self._read(before)
            self.phase = phase
        return before

    def _read(self, before: str) -> None:
        assert self._readings is not None
        self._readings += before, self.cpu
        if len(self._readings) >= MAX_MARKS:
            del self._readings[:-2]

    def mark(self, phase: str) -> None:
        """Record that the script has been in `phase` since the last mark."""
        marks = self._marks
        marks += phase, self.instant
        if len(marks) >= MAX_MARKS:
            marks[2:] = OTHER, marks[-1]

    def cut(self) -> tuple[list[Any], Readings | None]:
        """End the step, begin the next in phase `OTHER`, and return marks and CPU readings, if recorded."""
        marks, readings = self._marks, self._readings
        marks += self.phase, self.instant
        self._marks, self._readings, self.phase = marks[-2:], None, OTHER
        return marks, readings

    def begin_readings(self) -> None:
        """Record CPU readings until the end of the step."""
        self._readings = []


@dataclass(slots=True)
class ClockedStep:
    """One step with its measurements."""

    number: int  # the step's number in the run, from 0
    marks: list[Any]  # see `Phases.cut`
    samples: int  # rows of this rank in training calls
    evaluated: bool  # whether the step contains an evaluation
    gradient_bytes: int | None = None  # bytes of gradients that this rank sent; None if unknown
    overlaps: bool = False  # whether communication overlapped with backward
    # CPU readings, by which overlapped communication is estimated; None if not sampled
    readings: Readings | None = None
    loaded: int | None = None  # samples of the batches that were loaded; None if unknown
    elements: int = 0  # elements of the input tensors of training calls

    @property
    def end(self) -> Any:
        """The instant at which the step ended."""
        return self.marks[-1]

    def seconds(self, instants: Instants) -> dict[str, float]:
        """Return the seconds of each phase between the marks; the last instant must have passed."""
        found, marks, between = dict.fromkeys(ALL, 0.0), self.marks, instants.between
        for number in range(3, len(marks), 2):
            found[marks[number - 1]] += between(marks[number - 2], marks[number])
        return found

    def line(self, instants: Instants, contention: ContentionEstimator) -> dict[str, Any]:
        """Return the step as one line of the clock file; its last instant must have passed."""
        seconds = self.seconds(instants)
        if self.overlaps:
            exposed = contention.of(seconds, None if self.readings is None else cpu_use(self.readings))
            seconds[BACKWARD] -= exposed
            seconds[EXCHANGE] += exposed
        line: dict[str, Any] = {
            "step": self.number,
            "at": instants.epoch_s(self.marks[1]),
            "seconds": sum(seconds.values()),
            "samples": self.samples,
            "loaded": self.loaded,
            "elements": self.elements,
            "exchange_bytes": self.gradient_bytes,
            **seconds,
        }
        return {**line, "evaluated": True} if self.evaluated else line
