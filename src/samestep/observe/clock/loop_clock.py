"""Measures the phases of training steps in a loop that marks them itself, without slowing them down."""

from typing import Any

import torch

from samestep.base.step_phases import OTHER
from samestep.observe.clock.instants import DeviceInstants, HostInstants, Instants
from samestep.observe.clock.step_reader import Log, StepReader


class LoopClock:
    """Logs the ends of the phases of each step; steps never wait for the device."""

    def __init__(self, instants: Instants) -> None:
        self._instants, self._now = instants, instants.now
        self._log: Log = []
        self._reader = StepReader(self._log)
        self._marks: list[Any] = []

    def start(self) -> None:
        """Begin a step now, and discard an unfinished one."""
        self._marks = [OTHER, self._now()]

    def mark(self, phase: str) -> None:
        """End a phase of `base.step_phases`, which began at the last mark."""
        self._marks += phase, self._now()

    def step_done(self) -> None:
        """End a step at its last mark, and begin the next one there."""
        self._log += StepReader.marked_step, None, (self._marks,)
        self._marks = self._marks[-2:]

    def drain(self) -> list[dict[str, float]]:
        """Return the seconds of each phase, of the steps since the last call; waits for the device."""
        steps = [step for step in self._reader.read() if step is not None]
        if steps:
            self._instants.wait(steps[-1].end)
        return [step.seconds(self._instants) for step in steps]


def loop_clock(device: torch.device) -> LoopClock:
    """Return a clock of steps on `device`."""
    return LoopClock(HostInstants() if device.type == "cpu" else DeviceInstants(device))
