"""Defines the training step, whose result does not depend on the number of workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.observe.clock.step_reader import LoopClock
from samestep.parallel.gradients.replicate import Replicas
from samestep.training.data.loader import Batch
from samestep.training.loop.learner import Learner
from samestep.training.settings import Settings


@dataclass(slots=True, kw_only=True)
class Step(ABC):
    """One step of the optimizer and of the schedule per global batch, in one or more micro-batches.

    After the last backward of a step every rank has the gradients of the global batch. Clipping and the
    overflow check come after it, so their results are equal on all ranks. Nothing here waits for a device.
    """

    learner: Learner
    settings: Settings
    forward: Callable[[Tensor], Tensor]  # the model or its compiled form
    clock: LoopClock

    @abstractmethod
    def __call__(self, batch: Any) -> Tensor | None:
        """Train on this rank's part of a (micro-)batch.

        Returns:
            after the last micro-batch of a step this rank's part of its loss, times the number of ranks,
            detached; None after the others.
        """

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.learner.optimizer.param_groups[0]["lr"])

    def _backward(self, batch: Batch, weight: float) -> Tensor:
        """Accumulate the gradients of a batch; return its weighted mean loss, detached."""
        images = batch.images
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.clock.mark("data")
        with self.learner.precision.autocast():
            scores = self.forward(images)
        smoothing = self.settings.label_smoothing
        loss = share_of_loss(scores, batch.labels, weight, label_smoothing=smoothing)
        self.clock.mark("forward")
        self.learner.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _update(self) -> None:
        learner, scaler = self.learner, self.learner.precision.scaler
        if self.settings.clip_norm is not None:
            scaler.unscale_(learner.optimizer)
            nn.utils.clip_grad_norm_(learner.model.parameters(), self.settings.clip_norm)
        scaler.step(learner.optimizer)
        scaler.update()
        if learner.schedule is not None:
            learner.schedule.step()
        learner.optimizer.zero_grad()
        if learner.average is not None:
            learner.average.update()
        self.clock.mark("optimizer")
        self.clock.step_done()


@dataclass(slots=True, kw_only=True)
class ReplicatedStep(Step):
    """A data-parallel step: `replicas` averages the gradients during or after its last backward."""

    replicas: Replicas
    _loss: Tensor | None = field(default=None, init=False)
    _after_gradients: str = field(init=False)
    """The phase that ends with averaged gradients: "exposed_sync" if the end of backward is observable."""

    def __post_init__(self) -> None:
        observable = self.replicas.when_exchange_begins(lambda: self.clock.mark("backward"))
        self._after_gradients = "exposed_sync" if observable else "backward"

    def __call__(self, batch: Batch) -> Tensor | None:
        """See `Step.__call__`."""
        with nullcontext() if batch.last_of_step else self.replicas.accumulate():
            loss = self._backward(batch, batch.weight)
        self.clock.mark(self._after_gradients if batch.last_of_step else "backward")
        self._loss = loss if self._loss is None else self._loss + loss
        if not batch.last_of_step:
            return None
        self._update()
        loss, self._loss = self._loss, None
        return loss


def share_of_loss(scores: Tensor, labels: Tensor, weight: float, *, label_smoothing: float = 0.0) -> Tensor:
    """Return this rank's part of the mean cross-entropy over the global batch, times the number of ranks.

    The ranks' gradients are averaged, so uneven local batches are weighted here, before any accumulation.
    An empty local batch has passed through the model as well, because global batch norm needs all ranks;
    the sum of its scores is 0, whereas 0 times a mean over nothing is NaN.

    Args:
        scores: (local, classes); converted to float32 or wider.
        labels: (local,), int64.
        weight: local * N / global; see `Batch.weight`.
        label_smoothing: weight of the uniform distribution in the targets. Source: Szegedy et al.,
            "Rethinking the Inception architecture for computer vision", CVPR 2016.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not len(labels):
        empty: Tensor = scores.sum()
        return empty
    loss = F.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    return loss if weight == 1.0 else loss * weight
