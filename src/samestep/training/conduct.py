"""How a training is watched and kept: what changes none of its results."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from samestep.base.signals import WARNINGS
from samestep.training.option import check, option
from samestep.training.profile import steps_of

_KEEP, _WATCH = "Checkpoints", "What is written and shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """What is evaluated, kept and told on the way."""

    evaluate_every: int = option(
        default=1,
        about="Epochs between two evaluations; the last is always followed by one.",
        panel=_WATCH,
        least=1,
    )
    checkpoint_steps: int | None = option(
        default=None, about="Checkpoint every so many steps.", panel=_KEEP, least=1
    )
    checkpoint_minutes: float | None = option(
        default=10.0, about="Checkpoint every so many minutes.", panel=_KEEP, above=0
    )
    keep: int = option(
        default=2, about="Checkpoints kept: the last so many, and the best.", panel=_KEEP, least=1
    )
    stop_signal: tuple[str, ...] = option(
        default=("TERM", "USR1"),
        about="Finishes the step, writes a checkpoint, ends with exit code 75; may be repeated.",
        panel=_KEEP,
        choices=("TERM", "HUP", *(number.name.removeprefix("SIG") for number in WARNINGS)),
    )
    loader_workers: int | None = option(
        default=None,
        about="Loading processes of each worker, for data read from files; by default its share.",
        panel="Data",
        least=0,
    )
    logger: tuple[str, ...] = option(
        default=(),
        about="Show figures there as well; may be repeated.",
        panel=_WATCH,
        choices=("tensorboard", "wandb"),
    )
    metric: tuple[str, ...] = option(
        default=(),
        about="A classification metric of torchmetrics, such as F1Score:average=macro; may be repeated.",
        panel=_WATCH,
    )
    per_rank: bool = option(
        default=False, about="Show each worker's speed after every evaluation.", panel=_WATCH
    )
    profile: str | None = option(
        default=None, about="A:B traces steps A to B-1 with torch's profiler, on all workers.", panel=_WATCH
    )

    def __post_init__(self) -> None:
        check(self)
        if self.profile is not None:
            steps_of(self.profile)

    def as_dict(self) -> dict[str, Any]:
        """Return the options by name, those that are unset left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, ())}
