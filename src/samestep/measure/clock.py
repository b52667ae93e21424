"""Where the time of a training step goes, phase by phase, without slowing it down."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Generic, Protocol, TypeAlias

import torch

from samestep.base import phases
from samestep.measure.instants import DeviceInstants, HostInstants, Instant, Instants

Phases: TypeAlias = dict[str, float]
"""Seconds of each of `PHASES` in one step, and of `OTHER`."""

PHASES = phases.OF_LOOP
"""The phases of a step, in order; `exposed_sync` is the exchange that backward did not hide."""
OTHER = "other"
"""What is done between two steps that is part of neither, such as a checkpoint: told with the later one."""


class StepClock(Protocol):
    """Reads the time at the ends of the phases of each step."""

    def start(self) -> None:
        """Begin a step now, and forget one that was begun before."""

    def mark(self, phase: str) -> None:
        """End `phase`, one of `PHASES` or `OTHER`, which began at the last mark."""

    def step_done(self) -> None:
        """End a step with its last mark and begin the next there."""

    def drain(self) -> list[Phases]:
        """Return the steps done since the last call; may wait for a device. A phase not marked took 0 s."""


class _Marks(Generic[Instant]):
    """The book-keeping of both clocks; they differ in what an instant is."""

    def __init__(self, instants: Instants[Instant]) -> None:
        self._instants = instants
        self._now = instants.now
        self._marks: list[tuple[str, Instant]] = []
        self._steps: list[list[tuple[str, Instant]]] = []

    def start(self) -> None:
        """See `StepClock.start`."""
        self._marks = [("", self._now())]

    def mark(self, phase: str) -> None:
        """See `StepClock.mark`."""
        self._marks.append((phase, self._now()))

    def step_done(self) -> None:
        """See `StepClock.step_done`."""
        self._steps.append(self._marks)
        self._marks = self._marks[-1:]

    def drain(self) -> list[Phases]:
        """See `StepClock.drain`."""
        steps, self._steps = self._steps, []
        if steps:
            self._instants.wait(steps[-1][-1][1])
        return [self._lengths(marks) for marks in steps]

    def _lengths(self, marks: list[tuple[str, Instant]]) -> Phases:
        lengths = dict.fromkeys((*PHASES, OTHER), 0.0)
        for (_, before), (phase, after) in pairwise(marks):
            lengths[phase] += self._instants.between(before, after)
        return lengths


class HostClock(_Marks[float]):
    """A step clock for the CPU, where a phase is over when its code is.

    Args:
        now: returns seconds; must never go backwards.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(HostInstants(now))


class DeviceClock(_Marks[torch.Event]):
    """A step clock for an accelerator: an instant is an event in its queue, read once it has passed.

    Nothing waits for the device while steps run; `drain` waits for the last event it reads.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(DeviceInstants(device))


def step_clock(device: torch.device) -> StepClock:
    """Return the clock that fits `device`."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)
