"""Computes the global batch and learning rate of ``--batch-per-worker`` from the number of workers."""

from dataclasses import dataclass
from math import sqrt

from samestep.base.errors import UsageError

LR_SCALES = ("none", "linear", "sqrt")
"""The rules by which the learning rate depends on the number of workers.

linear: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677); sqrt: Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014 (arXiv:1404.5997).
"""

_SOURCES = {"linear": "linear: Goyal et al., 2017", "sqrt": "square root: Krizhevsky, 2014"}


@dataclass(frozen=True, slots=True)
class PerWorkerBatch:
    """The global batch and learning rate of a batch per worker."""

    batch_size: int
    """The global batch."""
    lr: float
    label: str | None
    """A sentence on how it differs from the serial training; None if it is the serial one."""


def batch_per_worker(batch: int, *, scale: str, lr: float, workers: int) -> PerWorkerBatch:
    """Return the global batch and learning rate if each worker takes `batch` samples per step.

    Args:
        batch: samples per worker and step.
        scale: one of `LR_SCALES`.
        lr: the learning rate for one worker.
        workers: their number.

    Raises:
        UsageError: `batch` is below 1, or `scale` is unknown.
    """
    if batch < 1:
        raise UsageError(f"--batch-per-worker is {batch}; use 1 or more.")
    if scale not in LR_SCALES:
        raise UsageError(f"--lr-scale {scale!r} is not one of {', '.join(LR_SCALES)}.")
    total = batch * workers
    scaled = lr * {"none": 1, "linear": workers, "sqrt": sqrt(workers)}[scale]
    if workers == 1:
        return PerWorkerBatch(total, scaled, label=None)
    rate = f"stays {lr:g}" if scale == "none" else f"becomes {scaled:g} from {lr:g} ({_SOURCES[scale]})"
    return PerWorkerBatch(
        total,
        scaled,
        label=f"Not the serial training: {batch} samples on each of {workers} workers make a global batch of "
        f"{total}, so there are fewer steps and the result depends on the number of workers. "
        f"The learning rate {rate}.",
    )
