"""Defines and checks the settings of a training, which its result depends on, and the options of a run."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from samestep.base.errors import CheckpointError, UsageError
from samestep.base.options import OF_SETTINGS, check, check_options, flag, option
from samestep.base.signals import WARNINGS
from samestep.training.output.profile import steps_of

SMALL_SHARE = 16
"""Samples per worker and step below which overhead dominates the time of a step."""

_CHANGEABLE = frozenset({"compile", "channels_last", "sync"})
"""Settings that a resumed run can change: the steps stay the same, and another machine may need it."""

_STEP, _SPEED = "Optimizer and schedule", "Precision and speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one training; none depends on the number of workers."""

    epochs: int = option(about="Passes over the training set.", least=1)
    batch_size: int = option(about="Samples per step, over all workers: the global batch.", least=1)
    seed: int = option(
        default=0, about="Seed of initial weights, order and augmentation.", least=0, most=2**63 - 1
    )
    shuffle: str = option(
        default="every-epoch",
        about="Order of the samples: a new one in every epoch, one for all epochs, or that of the data set.",
        choices=("every-epoch", "once", "never"),
    )
    augment: str = option(default="", about="Augmentation, such as crop:4,flip,cutout:8; empty for none.")
    label_smoothing: float = option(
        default=0.0, about="Weight of the uniform distribution in the targets.", least=0, most=1
    )
    batch_norm: Literal["local", "global"] | None = option(
        default=None,
        about="Batch norm statistics over the global batch (default), or local to each worker.",
        choices=("global", "local"),
    )
    accumulate: int = option(default=1, about="Micro-batches per step; gradients add up over them.", least=1)

    exact: int | None = option(
        default=None,
        about="Logical shards of a batch: the same bits on any number of workers up to this number.",
        least=1,
    )

    optimizer: str = option(default="sgd", about="Optimizer.", panel=_STEP, choices=("sgd", "adamw"))
    lr: float = option(about="Learning rate; the schedule's peak.", panel=_STEP, above=0)
    momentum: float = option(default=0.9, about="Momentum of SGD; below 1.", panel=_STEP, least=0, below=1)
    nesterov: bool = option(default=False, about="Nesterov momentum of SGD.", panel=_STEP)
    weight_decay: float = option(default=0.0, about="Weight decay of either optimizer.", panel=_STEP, least=0)
    schedule: str = option(
        default="constant",
        about="Learning rate schedule, stepped once per global batch.",
        panel=_STEP,
        choices=("constant", "step", "multistep", "cosine", "one-cycle"),
    )
    warmup: float = option(
        default=0.0, about="Warm-up epochs, in which the rate rises from near 0.", panel=_STEP, least=0
    )
    step_epochs: float = option(
        default=30.0, about="Epochs between drops of --schedule step.", panel=_STEP, above=0
    )
    milestones: tuple[float, ...] = option(
        default=(), about="Epochs of the drops of --schedule multistep.", panel=_STEP, above=0
    )
    gamma: float = option(
        default=0.1, about="Factor on the rate at each drop (step, multistep).", panel=_STEP, above=0
    )
    clip_norm: float | None = option(
        default=None, about="Maximum gradient norm of the global batch.", panel=_STEP, above=0
    )
    ema: float = option(
        default=0.0,
        about="Decay of an average of the weights, which is evaluated instead of them; below 1.",
        panel=_STEP,
        least=0,
        below=1,
    )

    precision: str = option(
        default="fp32",
        about="fp32; bf16, fp16: mixed; bf16-true, fp16-true: weights too; fp64; auto: bf16 if fast here.",
        panel=_SPEED,
        choices=("fp32", "bf16", "fp16", "bf16-true", "fp16-true", "fp64", "auto"),
    )
    compile: bool = option(default=False, about="Compile the model with torch.compile.", panel=_SPEED)
    channels_last: bool = option(
        default=False, about="Channels-last memory format of images and weights.", panel=_SPEED
    )
    sync: str = option(
        default="auto",
        about="Gradient synchronizer; auto: flat on the CPUs of one host, else bucketed.",
        panel=_SPEED,
        choices=("auto", "bucketed", "flat", "reference", "ddp"),
    )
    compress: str = option(
        default="none",
        about="Gradient compression; powersgd needs --sync ddp.",
        panel=_SPEED,
        choices=("none", "fp16", "bf16", "powersgd"),
    )

    def __post_init__(self) -> None:
        check(self)
        check_options(OF_SETTINGS, self.as_options())
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Check the numbers that limit each other."""
        if list(self.milestones) != sorted(set(self.milestones)):
            raise UsageError(f"--milestones {_listed(self.milestones)} must be in ascending order.")
        if self.warmup >= self.epochs:
            raise UsageError(f"--warmup is {self.warmup:g} of {self.epochs} epochs; use fewer.")
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"--batch-size {self.batch_size} does not divide into {self.accumulate} equal micro-batches; "
                "use an --accumulate that divides it."
            )
        micro = self.batch_size // self.accumulate
        if self.exact is not None and micro < self.exact:
            raise UsageError(
                f"--exact {self.exact} has more logical shards than the {micro} samples of a (micro-)batch. "
                "Use fewer shards, or a larger --batch-size."
            )

    def as_options(self) -> dict[str, Any]:
        """Return the values that are not those by default, by their option."""
        return {
            flag(field.name): value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def check_workers(self, workers: int) -> None:
        """Check that every worker has a sample of every full batch.

        Raises:
            UsageError: there are more workers than samples in a (micro-)batch, or than logical shards.
        """
        if self.exact is not None and workers > self.exact:
            raise UsageError(
                f"--exact {self.exact} uses at most {self.exact} workers, and there are {workers}. Use fewer "
                "workers; another number of shards gives another result."
            )
        if (micro := self.batch_size // self.accumulate) < workers:
            raise UsageError(
                f"--batch-size {self.batch_size} is the global batch"
                + (f" in {self.accumulate} micro-batches of {micro}" if self.accumulate > 1 else "")
                + f", and has fewer samples than there are workers ({workers}). "
                f"Use a batch size of {workers * self.accumulate} or more, or fewer workers."
            )

    def advice(self, workers: int) -> str | None:
        """Return a warning if the batch is small for so many workers, else None."""
        local = self.batch_size / self.accumulate / workers
        if workers == 1 or local >= SMALL_SHARE:
            return None
        return (
            f"{self.batch_size // self.accumulate} samples per step on {workers} workers are {local:.3g} per "
            "worker, so most of a step is overhead and communication. Fewer workers may be as fast; a larger "
            "--batch-size is faster, but gives another result."
        )

    def about_exact(self, workers: int) -> str | None:
        """Return the effect of ``--exact`` on the result and on the load of the workers; None without it."""
        if (shards := self.exact) is None:
            return None
        most, samples = -(-shards // workers), self.batch_size / self.accumulate / shards
        return (
            f"exact: {shards} logical shards of {samples:.3g} samples; batch norm computes statistics per "
            "shard. The weights do not depend on the number of workers, and differ from a run without "
            f"--exact. A worker computes up to {most} shards one after the other, and {workers} workers are "
            f"{shards / (workers * most):.0%} busy."
        )

    def check_resumable(self, begun: Mapping[str, Any]) -> None:
        """Check that a resumed run has the settings that it began with.

        The first settings are from `as_dict` or JSON, possibly of another version.

        Raises:
            CheckpointError: names a setting that differs.
        """
        for name, value in self.as_dict().items():
            before, now = _plain(begun.get(name, value)), _plain(value)
            if before != now and name not in _CHANGEABLE:
                raise CheckpointError(
                    f"the run began with {flag(name)} {before}, and its config.toml now has {now}. Restore "
                    "the value there, or start another run with --config."
                )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return dataclasses.asdict(self)


def _listed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _plain(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON."""
    return list(value) if isinstance(value, tuple) else value


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
    evaluate_first: bool = option(
        default=False, about="Evaluate the untrained model too, before the first step.", panel=_WATCH
    )
    print_every: int | None = option(
        default=None, about="Steps between printed lines with the loss.", panel=_WATCH, least=1
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
        metavar="SIGNAL",
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
        metavar="LOGGER",
        choices=("tensorboard", "wandb"),
    )
    metric: tuple[str, ...] = option(
        default=(),
        about="A classification metric of torchmetrics, such as F1Score:average=macro; repeatable.",
        panel=_WATCH,
        metavar="METRIC",
    )
    per_rank: bool = option(
        default=False,
        about="Print each worker's loss, accuracy and speed after every evaluation.",
        panel=_WATCH,
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
