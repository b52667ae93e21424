"""Evaluates a model over all ranks, counting every sample exactly once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from samestep.base.errors import OutOfStep
from samestep.ranks.world.protocol import World
from samestep.training.data.loader import Batch
from samestep.training.loop.metrics import TorchMetrics


@dataclass(frozen=True, slots=True)
class Score:
    """Sums and counts over a data set, and the accuracy and loss computed from them."""

    correct: int
    total: int
    loss_sum: float
    """Sum of the samples' cross-entropies."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The other requested metrics, by name."""
    ranks: tuple[tuple[int, int], ...] = ()
    """For each rank, the correct answers among its samples, and their number."""
    seconds: float = field(default=0.0, compare=False)
    """Time of the evaluation on this rank; scores are equal without it."""

    @property
    def accuracy(self) -> float:
        """Correct answers per sample, 0 .. 1."""
        return self.correct / self.total

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a sample."""
        return self.loss_sum / self.total

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        figures = {"accuracy": self.accuracy, "correct": self.correct, "total": self.total, "loss": self.loss}
        return {**figures, "metrics": self.metrics} if self.metrics else figures

    def summary(self) -> str:
        """Return the score as one line of text."""
        figures = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        right = f"{self.accuracy:.2%} of the test set right ({self.correct}/{self.total})"
        return f"{right}, loss {self.loss:.4f}{figures}"


class Interrupted(Exception):  # noqa: N818 - reads as the event it is
    """A rank received a stop signal during evaluation; raised on all ranks, without a score."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    total: int,
    world: World,
    autocast: AbstractContextManager[object] | None = None,
    metrics: TorchMetrics | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Score:
    """Score `model`, in evaluation mode, on this rank's local batches, and sum over all ranks.

    All local batches can be empty; `total` is the number of samples in the data set. Modules are back in
    their former modes afterwards. `stop` returns whether this rank must stop, before each batch.

    Raises:
        Interrupted: a rank stopped.
        OutOfStep: the ranks together did not count each of the `total` samples once.
    """
    began, place = perf_counter(), world.place
    table = torch.zeros(place.size, 4, dtype=torch.float64, device=world.device)
    sums = table[place.rank]  # correct, counted, loss, stopped ranks
    if metrics is not None:
        metrics.reset()
    with _evaluating(model), torch.inference_mode(), autocast or nullcontext():
        for batch in batches:
            if stop():
                sums[3] += 1
                break
            if len(batch.labels):
                scores = model(batch.images)
                scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
                sums[0] += (scores.argmax(1) == batch.labels).sum()
                sums[1] += len(batch.labels)
                sums[2] += F.cross_entropy(scores, batch.labels, reduction="sum")
                if metrics is not None:
                    metrics.update(scores, batch.labels)
    world.all_reduce(table)
    correct, counted, loss_sum, stopped = table.sum(0).tolist()
    if stopped:
        raise Interrupted
    if counted != total:
        raise OutOfStep(f"evaluation counted {counted:.0f} samples, and the data set has {total}")
    figures = {} if metrics is None else metrics.compute(world)
    return Score(
        correct=int(correct),
        total=total,
        loss_sum=loss_sum,
        metrics=figures,
        ranks=tuple((int(right), int(count)) for right, count, *_ in table.tolist()),
        seconds=perf_counter() - began,
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
