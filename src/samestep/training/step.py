"""One training step: the same one at any number of workers."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from samestep.data.loader import Batch
from samestep.measure.clock import StepClock


def share_of_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return this rank's part of the mean cross-entropy over the global batch, times the number of ranks.

    The ranks' gradients are averaged, so the factor that makes uneven shares right (`Batch.weight`) acts
    here, upstream of every accumulation. An empty share runs through the model all the same, because
    global batch norm needs all ranks; the sum over its no scores is 0, never 0 times NaN.
    """
    scores = model(batch.images)
    if not len(batch.labels):
        empty: Tensor = scores.sum()
        return empty
    loss = F.cross_entropy(scores, batch.labels)
    return loss if batch.weight == 1.0 else loss * batch.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the optimizer and of the schedule per global batch.

    `backward` ends with the gradients of the global batch on every rank: the synchroniser attached to
    `model` sees to that.
    """

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None
    clock: StepClock
    after_gradients: str = "backward"
    """The phase that ends with `backward`: "exposed_sync" where the exchange is seen to begin before."""

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's share of a global batch; return its `share_of_loss`, detached."""
        self.clock.mark("data")
        loss = share_of_loss(self.model, batch)
        self.clock.mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.mark(self.after_gradients)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()
        self.clock.mark("optimizer")
        self.clock.step_done()
        return loss.detach()

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])
