"""Evaluation in which every sample counts exactly once."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

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

    @property
    def accuracy(self) -> float:
        """Correct answers per sample, 0 .. 1."""
        return self.correct / self.total

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a sample."""
        return self.loss_sum / self.total


def evaluate(model: nn.Module, batches: Iterable[Batch], *, total: int, world: World) -> Score:
    """Score `model` on this rank's shares of `batches` and add up over all ranks.

    Args:
        model: put into evaluation mode, and each of its modules back into the mode it was in.
        batches: this rank's shares; may all be empty.
        total: samples in the data set.
        world: sums the counts.

    Raises:
        OutOfStep: the ranks together did not count each of the `total` samples once.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)  # correct, counted, loss
    with _evaluating(model), torch.inference_mode():
        for batch in batches:
            if len(batch.labels):
                scores = model(batch.images)
                sums[0] += (scores.argmax(1) == batch.labels).sum()
                sums[1] += len(batch.labels)
                sums[2] += F.cross_entropy(scores, batch.labels, reduction="sum")
    world.all_reduce(sums)
    correct, counted, loss_sum = sums.tolist()
    if counted != total:
        raise OutOfStep(f"evaluation counted {counted:.0f} samples of a data set of {total}")
    return Score(correct=int(correct), total=total, loss_sum=loss_sum)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
