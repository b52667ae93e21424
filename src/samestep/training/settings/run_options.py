"""Defines the options of a run that change none of its results: evaluation, checkpoints, logging."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from samestep.base.setting_fields import check, option
from samestep.base.signals import WARNINGS
from samestep.training.output.profile import steps_of

_KEEP, _WATCH = "Checkpoints", "Evaluation and output"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options for evaluation, checkpoints and output during a training."""

    evaluate_every: int = option(
        default=1,
        about="Epochs between evaluations; the last epoch is always evaluated.",
        panel=_WATCH,
        least=1,
    )
    checkpoint_steps: int | None = option(
        default=None, about="Steps between checkpoints.", panel=_KEEP, least=1
    )
    checkpoint_minutes: float | None = option(
        default=10.0, about="Minutes between checkpoints.", panel=_KEEP, above=0
    )
    keep: int = option(
        default=2, about="Number of latest checkpoints kept, besides the best.", panel=_KEEP, least=1
    )
    stop_signal: tuple[str, ...] = option(
        default=("TERM", "USR1"),
        about="Signal that finishes the step, writes a checkpoint and exits with code 75; repeatable.",
        panel=_KEEP,
        choices=("TERM", "HUP", *(number.name.removeprefix("SIG") for number in WARNINGS)),
    )
    loader_workers: int | None = option(
        default=None,
        about="DataLoader processes of each worker, for data read from files; default: its share of cores.",
        panel="Data",
        least=0,
    )
    logger: tuple[str, ...] = option(
        default=(),
        about="Send figures to this logger too; repeatable.",
        panel=_WATCH,
        choices=("tensorboard", "wandb"),
    )
    metric: tuple[str, ...] = option(
        default=(),
        about="A classification metric of torchmetrics, such as F1Score:average=macro; repeatable.",
        panel=_WATCH,
    )
    per_rank: bool = option(
        default=False, about="Print each worker's speed after every evaluation.", panel=_WATCH
    )
    profile: str | None = option(
        default=None, about="A:B traces steps A to B-1 on all workers with torch.profiler.", panel=_WATCH
    )

    def __post_init__(self) -> None:
        check(self)
        if self.profile is not None:
            steps_of(self.profile)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, ())}
