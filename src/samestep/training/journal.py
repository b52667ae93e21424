"""The metrics of every step, gathered in windows so that the hot loop never waits for one."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from samestep.measure.clock import OTHER, PHASES, Phases, StepClock
from samestep.world.world import World

LOOK_S = 1.0
"""About how long a window is: one small exchange and one wait for the device each."""
LONGEST = 500
"""Steps between two looks at most."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one step was."""

    epoch: int
    samples: int
    """Samples used so far in the whole run, by all workers."""
    count: int
    """Samples of this step, over all workers."""
    share: int
    """Samples of this step, of this rank."""
    lr: float
    loss: Tensor
    """This rank's part of the loss, times the number of ranks; still on its device."""


@dataclass(frozen=True, slots=True)
class Look:
    """What all ranks know after a look."""

    rows: list[dict[str, Any]]
    """One per step of the window; the loss is that of the global batch, the times are this rank's."""
    ranks: list[dict[str, Any]]
    """One per rank: its mean times over the window."""
    wishes: tuple[bool, ...]
    """Each wish that any rank had."""


class Journal:
    """Collects what each step was; turns windows of steps into rows.

    A look is due about once a second, at the same step on all ranks: they choose it at the look before, from
    the same figures. It is the one moment between the gradients' exchanges at which ranks talk, so whatever
    they must agree on, to stop or to write a checkpoint, goes along as a wish.

    Args:
        world: averages the shares of the loss.
        clock: has timed the steps.
    """

    def __init__(self, world: World, clock: StepClock) -> None:
        self._world = world
        self._clock = clock
        self._window: list[Entry] = []
        self._due = 1
        self._phases = {name: array("d") for name in PHASES}
        self._loss_sum = 0.0
        self._loss_count = 0
        self.steps = 0
        self.samples = 0

    def note(self, *, epoch: int, count: int, lr: float, loss: Tensor, share: int | None = None) -> None:
        """Take down one step, of which `share` of the `count` samples were this rank's; None for all."""
        self.steps += 1
        self.samples += count
        self._window.append(Entry(epoch, self.samples, count, count if share is None else share, lr, loss))

    @property
    def due(self) -> bool:
        """Whether it is time for a look."""
        return len(self._window) >= self._due

    def look(self, *wishes: bool) -> Look:
        """Exchange what happened since the last look; called by all ranks at the same step."""
        window, self._window = self._window, []
        timed = self._clock.drain()
        losses, wished, shares = self._exchange(window, wishes, timed)
        for name, lengths in self._phases.items():
            lengths.extend(phases[name] for phases in timed)
        before = self.steps - len(window)
        rows = [
            _row(before + k + 1, entry, loss, phases)
            for k, (entry, loss, phases) in enumerate(zip(window, losses, timed, strict=True))
        ]
        for entry, loss in zip(window, losses, strict=True):
            self._loss_sum += loss * entry.count
            self._loss_count += entry.count
        if window:
            self._pace(shares, len(window))
        return Look(rows, self._ranks(window, shares), wished)

    def take_mean_loss(self) -> float | None:
        """Return the mean loss of a sample over the steps looked at since the last call; None for none."""
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def median_phases(self) -> dict[str, float]:
        """Return the median seconds of each phase over all steps of this rank; 0 where there were none."""
        return {name: median(lengths) if lengths else 0.0 for name, lengths in self._phases.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to count on; between a look and the next step."""
        return {
            "step": self.steps,
            "samples_total": self.samples,
            "loss_sum": self._loss_sum,
            "loss_count": self._loss_count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from where `state` was taken."""
        self.steps, self.samples = state["step"], state["samples_total"]
        self._loss_sum, self._loss_count = state["loss_sum"], state["loss_count"]

    def _exchange(
        self, window: list[Entry], wishes: tuple[bool, ...], timed: list[Phases]
    ) -> tuple[list[float], tuple[bool, ...], list[list[float]]]:
        """Return the losses, whether anyone had each wish, and of each rank seconds by phase, and samples."""
        place, device = self._world.place, self._world.device
        mine = [sum(phases[name] for phases in timed) for name in (*PHASES, OTHER)]
        mine.append(sum(entry.share for entry in window))
        seats = torch.zeros(place.size, len(mine), dtype=torch.float64)
        seats[place.rank] = torch.tensor(mine, dtype=torch.float64)
        wished = torch.tensor([float(wish) for wish in wishes], dtype=torch.float64)
        parts = [torch.cat([wished, seats.flatten()]).to(device)]
        if window:
            parts.append(torch.stack([entry.loss for entry in window]).double())
        sums = torch.cat(parts)
        self._world.all_reduce(sums)
        found = sums.tolist()
        split = len(wishes) + seats.numel()
        shares = [found[start : start + len(mine)] for start in range(len(wishes), split, len(mine))]
        losses = [loss / place.size for loss in found[split:]]
        return losses, tuple(wish > 0 for wish in found[: len(wishes)]), shares

    def _pace(self, shares: list[list[float]], steps: int) -> None:
        """Choose when the next look is due: about a second from now, from figures equal on all ranks."""
        step_s = max(sum(seconds) for *seconds, _, _ in shares) / steps
        # Steps get faster at first: no leap on the word of a few.
        self._due = max(1, min(int(LOOK_S / max(step_s, 1e-9)), 4 * self._due, LONGEST))

    def _ranks(self, window: list[Entry], shares: list[list[float]]) -> list[dict[str, Any]]:
        if not window:
            return []
        return [
            {
                "step": self.steps,
                "steps": len(window),
                "rank": rank,
                "samples_per_second": samples / max(sum(seconds), 1e-9),
                **{
                    name: round(length / len(window), 7) for name, length in zip(PHASES, seconds, strict=True)
                },
                OTHER: round(other / len(window), 7),
            }
            for rank, (*seconds, other, samples) in enumerate(shares)
        ]


def _row(step: int, entry: Entry, loss: float, phases: Phases) -> dict[str, Any]:
    seconds = {name: phases[name] for name in PHASES}
    return {
        "step": step,
        "epoch": entry.epoch,
        "samples": entry.samples,
        "loss": loss,
        "lr": entry.lr,
        "samples_per_second": entry.count / sum(seconds.values()),
        **{name: round(length, 7) for name, length in seconds.items()},
    }
