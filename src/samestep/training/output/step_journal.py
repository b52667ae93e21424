"""Records the loss and the times of every step, and reduces them over the ranks in windows of steps.

The hot loop never waits for a step's figures; one small all-reduce per window fetches those of all its steps.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from samestep.base.step_phases import OF_LOOP, OTHER
from samestep.observe.step_reader import LoopClock
from samestep.ranks.world.protocol import World

WINDOW_S = 1.0
"""Target length of a window in seconds; each costs one small all-reduce and one device synchronization."""
MAX_STEPS = 500
"""Maximum steps of a window."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The figures of one step."""

    epoch: int
    samples: int  # samples used so far in the whole run, by all workers
    count: int  # samples of this step, over all workers
    local_count: int  # samples of this step on this rank
    lr: float
    loss: Tensor  # this rank's part of the loss, times the number of ranks; still on its device


@dataclass(frozen=True, slots=True)
class Window:
    """The reduced figures of a window of steps; equal on all ranks but for the times in `rows`."""

    rows: list[dict[str, Any]]
    """One per step of the window; the loss is that of the global batch, the times are this rank's."""
    ranks: list[dict[str, Any]]
    """One per rank: its mean times over the window."""
    requests: tuple[bool, ...]
    """For each request whether any rank has made it."""


class Journal:
    """The step records of a run, turned into rows one window at a time.

    A window ends about once a second, at the same step on all ranks: they compute its length from the
    figures of the window before, which are equal on all ranks. Apart from gradients this is the only
    communication of a training, so requests that concern all ranks (stop, write a checkpoint) are part of it.
    """

    def __init__(self, world: World, clock: LoopClock) -> None:
        self._world = world
        self._clock = clock
        self._window: list[StepRecord] = []
        self._due = 1
        self._phases = {name: array("d") for name in OF_LOOP}
        self._loss_sum = 0.0
        self._loss_count = 0
        self.steps = 0
        self.samples = 0

    def record(
        self, *, epoch: int, count: int, lr: float, loss: Tensor, local_count: int | None = None
    ) -> None:
        """Record a step of `count` samples, `local_count` of them on this rank (None for all)."""
        self.steps += 1
        self.samples += count
        self._window.append(
            StepRecord(epoch, self.samples, count, count if local_count is None else local_count, lr, loss)
        )

    @property
    def due(self) -> bool:
        """Whether the window is complete."""
        return len(self._window) >= self._due

    def end_window(self, *requests: bool) -> Window:
        """Reduce the steps since the last call over all ranks; called by all ranks at the same step."""
        window, self._window = self._window, []
        timed = self._clock.drain()
        losses, requested, per_rank, rank_losses = self._reduce(window, requests, timed)
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
            self._set_length(per_rank, len(window))
        return Window(rows, self._ranks(window, per_rank, rank_losses), requested)

    def take_mean_loss(self) -> float | None:
        """Return the mean loss per sample over the windows since the last call; None without a step."""
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def median_phases(self) -> dict[str, float]:
        """Return the median seconds of each phase over all steps of this rank; 0 without a step."""
        return {name: median(lengths) if lengths else 0.0 for name, lengths in self._phases.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts that a resumed run starts from; called between two windows."""
        return {
            "step": self.steps,
            "samples_total": self.samples,
            "loss_sum": self._loss_sum,
            "loss_count": self._loss_count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counts of `state`."""
        self.steps, self.samples = state["step"], state["samples_total"]
        self._loss_sum, self._loss_count = state["loss_sum"], state["loss_count"]

    def _reduce(
        self, window: list[StepRecord], requests: tuple[bool, ...], timed: list[dict[str, float]]
    ) -> tuple[list[float], tuple[bool, ...], list[list[float]], list[float]]:
        """Return the losses, whether any rank made each request, and two lists with an item for each rank.

        These are its phase times and samples, and the sum of its samples' losses.
        """
        place, device = self._world.place, self._world.device
        totals = [sum(phases[name] for phases in timed) for name in (*OF_LOOP, OTHER)]
        totals.append(sum(entry.local_count for entry in window))
        table = torch.zeros(place.size, len(totals), dtype=torch.float64, device="cpu")
        table[place.rank] = torch.tensor(totals, dtype=torch.float64, device="cpu")
        requested = torch.tensor([float(request) for request in requests], dtype=torch.float64, device="cpu")
        parts = [torch.cat([requested, table.flatten()]).to(device)]
        if window:
            losses_here = torch.stack([entry.loss for entry in window]).double()
            counts = torch.tensor([entry.count for entry in window], dtype=torch.float64, device=device)
            sums_of_ranks = torch.zeros(place.size, dtype=torch.float64, device=device)
            sums_of_ranks[place.rank] = (losses_here * counts).sum() / place.size
            parts += [losses_here, sums_of_ranks]
        sums = torch.cat(parts)
        self._world.all_reduce(sums)
        numbers = sums.tolist()
        split = len(requests) + table.numel()
        per_rank = [
            numbers[start : start + len(totals)] for start in range(len(requests), split, len(totals))
        ]
        losses = [loss / place.size for loss in numbers[split : split + len(window)]]
        made = tuple(count > 0 for count in numbers[: len(requests)])
        return losses, made, per_rank, numbers[split + len(window) :]

    def _set_length(self, per_rank: list[list[float]], steps: int) -> None:
        """Set the steps of the next window to about a second, from figures that are equal on all ranks."""
        step_s = max(sum(seconds) for *seconds, _, _ in per_rank) / steps
        # The first steps are slower than later ones, so the length grows by at most a factor of 4.
        self._due = max(1, min(int(WINDOW_S / max(step_s, 1e-9)), 4 * self._due, MAX_STEPS))

    def _ranks(
        self, window: list[StepRecord], per_rank: list[list[float]], losses: list[float]
    ) -> list[dict[str, Any]]:
        if not window:
            return []
        return [
            {
                "step": self.steps,
                "steps": len(window),
                "rank": rank,
                "loss": losses[rank] / samples if samples else None,
                "samples_per_second": samples / max(sum(seconds), 1e-9),
                **{name: round(s / len(window), 7) for name, s in zip(OF_LOOP, seconds, strict=True)},
                OTHER: round(other_s / len(window), 7),
            }
            for rank, (*seconds, other_s, samples) in enumerate(per_rank)
        ]


def _row(step: int, entry: StepRecord, loss: float, phases: Mapping[str, float]) -> dict[str, Any]:
    seconds = {name: phases[name] for name in OF_LOOP}
    return {
        "step": step,
        "epoch": entry.epoch,
        "samples": entry.samples,
        "loss": loss,
        "lr": entry.lr,
        "samples_per_second": entry.count / sum(seconds.values()),
        **{name: round(length, 7) for name, length in seconds.items()},
    }
