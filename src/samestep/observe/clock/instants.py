"""Defines instants, and records those at which a step changes its phase; the phases add up to the step.

An instant is a time on the host, or an event in the stream of an accelerator::

    other | data | forward ...  exposed_sync | forward | backward ... | exposed_sync | optimizer |
          ^      ^              ^            ^         ^              ^              ^           ^ step ends
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch

from samestep.base.step_phases import ALL, BACKWARD, EXCHANGE, OTHER
from samestep.observe.clock.cpu_contention import COMPUTING, ContentionEstimator, CpuUse, Readings, cpu_use


def is_captured(device: torch.device) -> bool:
    """Return whether this thread captures a CUDA graph: work on the device is then recorded, not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class HostInstants:
    """Instants of the host, where work ends with its code.

    `now` returns the current instant in monotonic seconds.
    """

    of_device: ClassVar[bool] = False
    """Whether queries are limited to the thread that uses the device, outside a graph capture."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._origin_s: float | None = None  # unix time at which `now` is 0

    def between(self, before: float, after: float) -> float:
        """Return the seconds between two instants that have passed."""
        return after - before

    def epoch_s(self, instant: float) -> float:
        """Return the Unix time, in seconds, of an instant that has passed."""
        if self._origin_s is None:
            self._origin_s = time.time_ns() / 1e9 - self.now()
        return self._origin_s + instant

    def has_passed(self, instant: float) -> bool:
        """Return whether an instant has passed, without waiting."""
        del instant
        return True

    def wait(self, instant: float) -> None:
        """Wait until an instant has passed."""


class DeviceInstants:
    """Instants of an accelerator: events in its current stream; see `HostInstants` for the methods.

    By default, a query of an event in any thread invalidates a CUDA graph capture. The accelerator is not
    necessarily the program's current device.
    """

    of_device: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = self._last = self._recorded()
        self._origin.synchronize()
        self._epoch_s = time.time_ns() / 1e9

    def now(self) -> torch.Event:
        """Return the current instant; during a graph capture nothing runs, so it is the last one."""
        if not is_captured(self._device):
            self._last = self._recorded()
        return self._last

    def _recorded(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def between(self, before: torch.Event, after: torch.Event) -> float:
        """See `HostInstants`."""
        return before.elapsed_time(after) / 1000

    def epoch_s(self, instant: torch.Event) -> float:
        """See `HostInstants`."""
        return self._epoch_s + self.between(self._origin, instant)

    def has_passed(self, instant: torch.Event) -> bool:
        """See `HostInstants`."""
        return bool(instant.query())

    def wait(self, instant: torch.Event) -> None:
        """See `HostInstants`."""
        instant.synchronize()


Instants: TypeAlias = HostInstants | DeviceInstants


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
        seconds, marks, between = dict.fromkeys(ALL, 0.0), self.marks, instants.between
        for number in range(3, len(marks), 2):
            seconds[marks[number - 1]] += between(marks[number - 2], marks[number])
        return seconds

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
