"""Where the time of a training step goes, phase by phase, without slowing it down."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias

import torch

Lengths: TypeAlias = Sequence[float]
"""Seconds of each phase of one step, in the order of `PHASES`."""

PHASES = ("data", "forward", "backward", "exposed_sync", "optimizer")
"""The phases of a step, in order; `exposed_sync` is the exchange that backward did not hide."""


class StepClock(Protocol):
    """Reads the time at the borders of the phases of a step."""

    def start(self) -> None:
        """Begin the first step of a row."""

    def mark(self) -> None:
        """End the current phase and begin the next."""

    def step_done(self) -> None:
        """End the last phase of a step and begin the first of the next."""

    def drain(self) -> list[Lengths]:
        """Return the lengths of the steps finished since the last call; may wait for a device."""


class HostClock:
    """A step clock for the CPU, where a phase is over when its code is.

    Args:
        now: returns seconds; must never go backwards.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._marks: list[float] = []
        self._steps: list[Lengths] = []

    def start(self) -> None:
        """See `StepClock.start`."""
        self._marks = [self._now()]

    def mark(self) -> None:
        """See `StepClock.mark`."""
        self._marks.append(self._now())

    def step_done(self) -> None:
        """See `StepClock.step_done`."""
        self._marks.append(self._now())
        self._steps.append(_lengths(self._marks))
        self._marks = [self._marks[-1]]

    def drain(self) -> list[Lengths]:
        """See `StepClock.drain`."""
        steps, self._steps = self._steps, []
        return steps


class DeviceClock:
    """A step clock for an accelerator: marks are events in its queue, read once they have passed.

    Nothing waits for the device while steps run; `drain` waits for the last of the events it reads.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.Event] = []
        self._steps: list[list[torch.Event]] = []

    def start(self) -> None:
        """See `StepClock.start`."""
        self._marks = [self._event()]

    def mark(self) -> None:
        """See `StepClock.mark`."""
        self._marks.append(self._event())

    def step_done(self) -> None:
        """See `StepClock.step_done`."""
        self._marks.append(self._event())
        self._steps.append(self._marks)
        self._marks = [self._marks[-1]]

    def drain(self) -> list[Lengths]:
        """See `StepClock.drain`."""
        if self._steps:
            self._steps[-1][-1].synchronize()
        steps: list[Lengths] = [
            [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)] for marks in self._steps
        ]
        self._steps.clear()
        return steps

    def _event(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def step_clock(device: torch.device) -> StepClock:
    """Return the clock that fits `device`."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)


def _lengths(marks: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]
