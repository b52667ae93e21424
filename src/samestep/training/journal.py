"""The metrics of every step, gathered in windows so that the hot loop never waits for one."""

from array import array
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from samestep.measure.clock import PHASES, Phases, StepClock
from samestep.world.world import World

WINDOW = 50
"""Steps between two looks at the losses: one small exchange and one wait for the device each."""


@dataclass(frozen=True, slots=True)
class _Entry:
    epoch: int
    samples: int
    """Samples used so far in the whole run, by all workers."""
    count: int
    """Samples of this step, over all workers."""
    lr: float
    loss: Tensor
    """This rank's `share_of_loss`, still on its device."""


class Journal:
    """Collects what each step was; turns windows of steps into rows.

    Args:
        world: averages the shares of the loss.
        clock: has timed the steps.
    """

    def __init__(self, world: World, clock: StepClock) -> None:
        self._world = world
        self._clock = clock
        self._window: list[_Entry] = []
        self._phases = {name: array("d") for name in PHASES}
        self._loss_sum = 0.0
        self._loss_count = 0
        self.steps = 0
        self.samples = 0

    def note(self, *, epoch: int, count: int, lr: float, loss: Tensor) -> bool:
        """Take down one step; returns whether the window is full and `flush` is due."""
        self.samples += count
        self._window.append(_Entry(epoch, self.samples, count, lr, loss))
        return len(self._window) >= WINDOW

    def flush(self) -> list[dict[str, Any]]:
        """Return the rows of the window; called by all ranks at the same step.

        A row's loss is the mean over the global batch, equal on all ranks; its times are this rank's.
        """
        window, self._window = self._window, []
        if not window:
            return []
        losses = torch.stack([entry.loss for entry in window]).double()
        self._world.all_reduce(losses)
        losses /= self._world.place.size
        timed = self._clock.drain()
        for name, lengths in self._phases.items():
            lengths.extend(phases[name] for phases in timed)
        rows = [
            _row(self.steps + k + 1, entry, loss, phases)
            for k, (entry, loss, phases) in enumerate(zip(window, losses.tolist(), timed, strict=True))
        ]
        self.steps += len(rows)
        for entry, row in zip(window, rows, strict=True):
            self._loss_sum += row["loss"] * entry.count
            self._loss_count += entry.count
        return rows

    def take_mean_loss(self) -> float:
        """Return the mean loss of a sample over the flushed steps since the last call."""
        mean = self._loss_sum / self._loss_count
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def median_phases(self) -> dict[str, float]:
        """Return the median seconds of each phase over all steps of this rank."""
        return {name: median(lengths) for name, lengths in self._phases.items()}


def _row(step: int, entry: _Entry, loss: float, phases: Phases) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": entry.epoch,
        "samples": entry.samples,
        "loss": loss,
        "lr": entry.lr,
        "samples_per_second": entry.count / sum(phases.values()),
        **{name: round(seconds, 7) for name, seconds in phases.items()},
    }
