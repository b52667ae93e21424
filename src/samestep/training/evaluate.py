"""Evaluation in which every sample counts exactly once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.base.errors import OutOfStep
from samestep.data.loader import Batch
from samestep.world.world import World


@dataclass(frozen=True, slots=True)
class Score:
    """Sums and counts over a whole data set, and what follows from them."""

    correct: int
    total: int
    loss_sum: float
    """Sum of the samples' cross-entropies."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Whatever else was asked for, by name."""

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
        """Return the score in one plain line."""
        others = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        right = f"{self.accuracy:.2%} of the test set right ({self.correct}/{self.total})"
        return f"{right}, loss {self.loss:.4f}{others}"


class Interrupted(Exception):  # noqa: N818 - reads as the event it is
    """A rank was asked to stop while it evaluated; all ranks know, and nothing was scored."""


class Metrics(Protocol):
    """Other figures over a data set, fed share by share."""

    def reset(self) -> None:
        """Forget all samples."""

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Take in this rank's scores of a batch, (local, classes), and the right answers, (local,)."""

    def compute(self, world: World) -> dict[str, float]:
        """Return each figure over the samples of all ranks; called by all ranks."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    total: int,
    world: World,
    autocast: AbstractContextManager[object] | None = None,
    metrics: Metrics | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Score:
    """Score `model` on this rank's shares of `batches` and add up over all ranks.

    Args:
        model: put into evaluation mode, and each of its modules back into the mode it was in.
        batches: this rank's shares; may all be empty.
        total: samples in the data set.
        world: sums the counts.
        autocast: in which the model computes.
        metrics: fed with every sample.
        stop: whether this rank is to leave off; asked before each batch.

    Raises:
        Interrupted: a rank left off.
        OutOfStep: the ranks together did not count each of the `total` samples once.
    """
    sums = torch.zeros(4, dtype=torch.float64, device=world.device)  # correct, counted, loss, who left off
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
    world.all_reduce(sums)
    correct, counted, loss_sum, left = sums.tolist()
    if left:
        raise Interrupted
    if counted != total:
        raise OutOfStep(f"evaluation counted {counted:.0f} samples of a data set of {total}")
    others = {} if metrics is None else metrics.compute(world)
    return Score(correct=int(correct), total=total, loss_sum=loss_sum, metrics=others)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
