"""What a training is to do, as a value: resolved once, checked, stored in the run folder."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch

from samestep.base.errors import UsageError

CHOICES = {
    "optimizer": ("sgd", "adamw"),
    "schedule": ("constant", "cosine", "one-cycle"),
    "sync": ("bucketed", "reference", "ddp"),
    "batch_norm": ("global", "local"),
    "dtype": ("float32", "float64"),
}
"""What each named choice may be."""


SMALL_SHARE = 16
"""Samples per worker and step below which the cost of a step hardly depends on their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one training; none of them depends on the number of workers."""

    epochs: int
    batch_size: int
    """Samples per step over all workers: the *global* batch."""
    lr: float
    """Learning rate; the peak of the schedule."""
    optimizer: str = "sgd"
    momentum: float = 0.9
    """Of SGD alone."""
    weight_decay: float = 0.0
    schedule: str = "constant"
    """Steps once per global batch."""
    seed: int = 0
    """Of the initial weights and of every epoch's order."""
    sync: str = "bucketed"
    """The gradient synchroniser."""
    batch_norm: Literal["local", "global"] = "global"
    """Batch norm over the global batch (the serial result) or over each worker's share."""
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (found := getattr(self, name)) not in choices:
                raise UsageError(f"{_flag(name)} {found!r} is not one of {', '.join(choices)}.")
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("seed", 0),
            ("weight_decay", 0),
            ("momentum", 0),
        ):
            if not (found := getattr(self, name)) >= least:  # NaN is refused as well
                raise UsageError(f"{_flag(name)} {found} is too small; use {least} or more.")
        if self.seed >= 2**63:
            raise UsageError(f"--seed {self.seed} is too large; use less than 2**63.")
        if not 0 < self.lr < float("inf"):
            raise UsageError(f"--lr {self.lr} is no learning rate; use a positive number.")

    def check_workers(self, workers: int) -> None:
        """Refuse a global batch that leaves a worker without a sample in every step.

        Raises:
            UsageError: there are more workers than samples in a batch.
        """
        if self.batch_size < workers:
            raise UsageError(
                f"--batch-size {self.batch_size} is the global batch, and {workers} workers share it: "
                f"some would never see a sample. Use a batch size of {workers} or more, or fewer workers."
            )

    def advice(self, workers: int) -> str | None:
        """Return what to know about this batch size on so many workers before waiting for it, if anything."""
        share = self.batch_size / workers
        if workers == 1 or share >= SMALL_SHARE:
            return None
        return (
            f"{self.batch_size} samples per step on {workers} workers is {share:.3g} for each: most of a "
            "step will be overhead and exchange. Fewer workers may be as fast; a larger --batch-size is "
            "faster, and another training."
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and images."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return dataclasses.asdict(self)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
