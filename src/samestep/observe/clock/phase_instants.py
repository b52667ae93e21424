"""Records the instants at which a step changes its phase, so that the phases add up to the step.

::

    other | data | forward ...  exposed_sync | forward | backward ... | exposed_sync | optimizer |
          ^      ^              ^            ^         ^              ^              ^           ^ step ends
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic

from samestep.base.step_phases import BACKWARD, EXCHANGE, OTHER
from samestep.observe.clock.clock_file import STEP_PHASES
from samestep.observe.clock.cpu_contention import COMPUTING, ContentionEstimator, CpuUse, Readings, cpu_use
from samestep.observe.clock.instants import Instant, Instants

MAX_MARKS = 1 << 16
"""Maximum length of a step's list of marks; only a step that never ends exceeds it, as with graph replays."""


class Phases(Generic[Instant]):
    """The current phase of a script, and the phases of its current step.

    Marks are a flat list. Once it has `MAX_MARKS` items, the time so far becomes `OTHER`.

    Args:
        now: returns the current instant.
        cpu: returns the CPU time that the script's thread has had until that instant.
    """

    def __init__(self, now: Callable[[], Instant], cpu: Callable[[], CpuUse]) -> None:
        self._now, self._cpu = now, cpu
        self._readings: Readings | None = None
        """CPU readings of this step; None if it is not sampled."""
        self.phase = OTHER
        self._marks: list[Any] = [OTHER, now()]
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
        self._readings += before, self._cpu()
        if len(self._readings) >= MAX_MARKS:
            del self._readings[:-2]

    def mark(self, phase: str) -> None:
        """Record that the script has been in `phase` since the last mark."""
        marks = self._marks
        marks += phase, self._now()
        if len(marks) >= MAX_MARKS:
            marks[2:] = OTHER, marks[-1]

    def cut(self) -> list[Any]:
        """End the step, begin the next in phase `OTHER`, and return the marks."""
        marks = self._marks
        marks += self.phase, self._now()
        self._marks, self.phase = marks[-2:], OTHER
        return marks

    def begin_readings(self) -> None:
        """Record CPU readings from now on."""
        self._readings = []

    def take_readings(self) -> Readings | None:
        """Stop recording CPU readings and return them; None if they were not recorded."""
        found, self._readings = self._readings, None
        return found


class OnExit:
    """A reentrant context manager without state that calls a function at its exit.

    Args:
        callback: the function.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._callback()


@dataclass(slots=True)
class ClockedStep(Generic[Instant]):
    """One step with its measurements.

    Args:
        number: the step's number in the run, from 0.
        marks: see `Phases.cut`.
        samples: rows of this rank in training calls.
        evaluated: whether the step contains an evaluation.
        gradient_bytes: bytes of gradients that this rank sent; None if unknown.
        overlaps: whether communication overlapped with backward.
        readings: CPU readings, by which overlapped communication is estimated; None if not sampled.
        loaded: samples of the batches that were loaded; None if unknown.
        elements: elements of the input tensors of training calls.
    """

    number: int
    marks: list[Any]
    samples: int
    evaluated: bool
    gradient_bytes: int | None = None
    overlaps: bool = False
    readings: Readings | None = None
    loaded: int | None = None
    elements: int = 0

    @property
    def end(self) -> Instant:
        """The instant at which the step ended."""
        instant: Instant = self.marks[-1]
        return instant

    def line(self, instants: Instants[Instant], contention: ContentionEstimator) -> dict[str, Any]:
        """Return the step as one line of the clock file; its last instant must have passed."""
        seconds = dict.fromkeys(STEP_PHASES, 0.0)
        for phase, (before, after) in zip(self.marks[2::2], pairwise(self.marks[1::2]), strict=True):
            seconds[phase] += instants.between(before, after)
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
