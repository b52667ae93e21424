"""Measures the phases of training steps without slowing them down."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Generic, Protocol, TypeAlias

import torch

from samestep.base import step_phases
from samestep.observe.clock.instants import DeviceInstants, HostInstants, Instant, Instants

Phases: TypeAlias = dict[str, float]
"""Seconds of one step in each of `PHASES` and in `OTHER`."""

PHASES = step_phases.OF_LOOP
"""The phases of a step, in order; `exposed_sync` is the communication that backward did not hide."""
OTHER = "other"
"""Time between two steps, such as for a checkpoint; it is recorded with the later step."""


class StepClock(Protocol):
    """Records the time at the end of each phase of a step."""

    def start(self) -> None:
        """Begin a step now, and discard an unfinished one."""

    def mark(self, phase: str) -> None:
        """End `phase`, one of `PHASES` or `OTHER`, which began at the last mark."""

    def step_done(self) -> None:
        """End a step at its last mark, and begin the next one there."""

    def drain(self) -> list[Phases]:
        """Return the steps since the last call, with 0 s for unmarked phases; waits for the device."""


class _Marks(Generic[Instant]):
    """The implementation of both clocks, which differ in their type of instant."""

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
    """A step clock for the CPU, where a phase ends with its code.

    Args:
        now: returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(HostInstants(now))


class DeviceClock(_Marks[torch.Event]):
    """A step clock for an accelerator, whose instants are events in the device's stream.

    Steps never wait for the device; `drain` waits for the last event that it reads.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(DeviceInstants(device))


def step_clock(device: torch.device) -> StepClock:
    """Return a step clock for `device`."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)
