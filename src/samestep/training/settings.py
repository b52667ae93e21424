"""What a training is to do, as a value: resolved once, checked, stored in the run folder."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from samestep.base.errors import CheckpointError, UsageError
from samestep.collectives.crossovers import check_algorithm
from samestep.training.option import check, flag, option

SMALL_SHARE = 16
"""Samples per worker and step below which the cost of a step hardly depends on their number."""

_COMPUTED_ALIKE = frozenset({"compile", "channels_last", "sync", "algorithm"})
"""What a run may go on with otherwise: another machine may need it, and the steps are the same."""

_STEP, _SPEED = "Optimizer and schedule", "Precision and speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one training; none of them depends on the number of workers."""

    epochs: int = option(about="Passes over the training set.", least=1)
    batch_size: int = option(about="Samples per step, over all workers: the global batch.", least=1)
    seed: int = option(default=0, about="Of first weights, order and augmentation.", least=0, most=2**63 - 1)
    augment: str = option(default="", about="Such as crop:4,flip,cutout:8; empty for none.")
    label_smoothing: float = option(
        default=0.0, about="Weight of the uniform distribution in the targets.", least=0, most=1
    )
    batch_norm: Literal["local", "global"] | None = option(
        default=None,
        about="global, if not said: over the global batch; local: over shares.",
        choices=("global", "local"),
    )
    accumulate: int = option(default=1, about="Micro-batches per step; gradients add up over them.", least=1)

    exact: int | None = option(
        default=None,
        about="Logical shards of a batch: the same bits on any number of workers up to this one.",
        least=1,
    )

    optimizer: str = option(default="sgd", about="Which.", panel=_STEP, choices=("sgd", "adamw"))
    lr: float = option(about="Learning rate; the schedule's peak.", panel=_STEP, above=0)
    momentum: float = option(default=0.9, about="Of SGD; below 1.", panel=_STEP, least=0, below=1)
    nesterov: bool = option(default=False, about="Nesterov's momentum, of SGD.", panel=_STEP)
    weight_decay: float = option(default=0.0, about="Of either optimizer.", panel=_STEP, least=0)
    schedule: str = option(
        default="constant",
        about="How the learning rate goes; steps once per global batch.",
        panel=_STEP,
        choices=("constant", "step", "multistep", "cosine", "one-cycle"),
    )
    warmup: float = option(
        default=0.0, about="Epochs over which the rate rises from near 0 first.", panel=_STEP, least=0
    )
    step_epochs: float = option(default=30.0, about="step: epochs between two drops.", panel=_STEP, above=0)
    milestones: tuple[float, ...] = option(
        default=(), about="multistep: the epochs of the drops.", panel=_STEP, above=0
    )
    gamma: float = option(
        default=0.1, about="step, multistep: what a drop multiplies the rate by.", panel=_STEP, above=0
    )
    clip_norm: float | None = option(
        default=None, about="Largest norm of the global batch's gradients.", panel=_STEP, above=0
    )
    ema: float = option(
        default=0.0,
        about="Decay of an average of the weights, evaluated instead; below 1.",
        panel=_STEP,
        least=0,
        below=1,
    )

    precision: str = option(
        default="fp32",
        about="fp32; bf16, fp16 (mixed); bf16-true (weights too); fp64; auto: bf16 where the machine has it.",
        panel=_SPEED,
        choices=("fp32", "bf16", "fp16", "bf16-true", "fp64", "auto"),
    )
    compile: bool = option(default=False, about="Compile the model with torch.compile.", panel=_SPEED)
    channels_last: bool = option(
        default=False, about="Images and weights with channels innermost.", panel=_SPEED
    )
    sync: str = option(
        default="auto",
        about="The gradient synchroniser; auto: flat on the processors of one host, else bucketed.",
        panel=_SPEED,
        choices=("auto", "bucketed", "flat", "reference", "ddp"),
    )
    algorithm: str | None = option(
        default=None,
        about="The all-reduce of gradients under bucketed and reference: native, naive, tree, ring, "
        "halving_doubling, shared_memory, such as tree,ring:64K, or auto, as bench all-reduce --save found.",
        panel=_SPEED,
    )
    compress: str = option(
        default="none",
        about="How gradients travel; powersgd needs --sync ddp.",
        panel=_SPEED,
        choices=("none", "fp16", "bf16", "powersgd"),
    )

    def __post_init__(self) -> None:
        check(self)
        self._refuse_combinations()
        if self.algorithm is not None:
            self._refuse_beside_algorithm(self.algorithm)
        if self.exact is not None:
            self._refuse_beside_exact(self.exact)

    def _refuse_combinations(self) -> None:
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise UsageError(
                "--nesterov is a form of SGD's momentum: use --optimizer sgd and a --momentum above 0."
            )
        if self.schedule == "multistep" and not self.milestones:
            raise UsageError(
                "--schedule multistep needs --milestones, the epochs after which the rate drops."
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise UsageError(f"--milestones {_listed(self.milestones)} must rise.")
        if self.warmup and self.schedule == "one-cycle":
            raise UsageError("--schedule one-cycle warms up by itself: leave out --warmup.")
        if self.warmup >= self.epochs:
            raise UsageError(f"--warmup {self.warmup:g} takes all of the {self.epochs} epochs; use fewer.")
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"--batch-size {self.batch_size} does not divide into {self.accumulate} equal micro-batches; "
                "use an --accumulate that divides it."
            )
        if self.compress != "none" and self.sync in ("reference", "flat"):
            raise UsageError(f"--compress {self.compress} needs --sync bucketed or ddp.")
        if self.compress == "powersgd" and self.sync != "ddp":
            raise UsageError("--compress powersgd is torch's, and needs --sync ddp.")
        if self.compress == "powersgd" and self.precision == "fp16":
            raise UsageError(
                "--compress powersgd adds what it left out to the next step, so that it never recovers from "
                "an overflow, which --precision fp16 has by design: use bf16, or --compress fp16."
            )

    def _refuse_beside_algorithm(self, algorithm: str) -> None:
        check_algorithm(algorithm)
        if self.sync in ("flat", "ddp"):
            raise UsageError(
                f"--sync {self.sync} exchanges gradients in its own way: --algorithm {algorithm} needs "
                "--sync bucketed or reference."
            )

    def _refuse_beside_exact(self, shards: int) -> None:
        if (micro := self.batch_size // self.accumulate) < shards:
            raise UsageError(
                f"--exact {shards}: {micro} samples cannot fill so many logical shards. Use fewer of them, "
                "or a larger --batch-size."
            )
        if self.sync != "auto" or self.compress != "none" or self.algorithm is not None:
            raise UsageError(
                "--exact exchanges gradients in its own way: leave out --sync, --algorithm and --compress."
            )
        if self.batch_norm is not None:
            raise UsageError(
                "--exact takes batch norm's statistics over each logical shard: leave out --batch-norm."
            )

    def check_workers(self, workers: int) -> None:
        """Refuse a global batch that leaves a worker without a sample in every step.

        Raises:
            UsageError: there are more workers than samples in a (micro-)batch, or than logical shards.
        """
        if self.exact is not None and workers > self.exact:
            raise UsageError(
                f"--exact {self.exact} keeps at most {self.exact} workers busy, and there are {workers}. Use "
                "fewer; another number of shards is another training."
            )
        if (micro := self.batch_size // self.accumulate) < workers:
            raise UsageError(
                f"--batch-size {self.batch_size} is the global batch"
                + (f" in {self.accumulate} micro-batches of {micro}" if self.accumulate > 1 else "")
                + f", and {workers} workers share it: some would never see a sample. "
                f"Use a batch size of {workers * self.accumulate} or more, or fewer workers."
            )

    def advice(self, workers: int) -> str | None:
        """Return what to know about this batch size on so many workers before waiting for it, if anything."""
        share = self.batch_size / self.accumulate / workers
        if workers == 1 or share >= SMALL_SHARE:
            return None
        return (
            f"{self.batch_size // self.accumulate} samples per step on {workers} workers is {share:.3g} for "
            "each: most of a step will be overhead and exchange. Fewer workers may be as fast; a larger "
            "--batch-size is faster, and another training."
        )

    def about_exact(self, workers: int) -> str | None:
        """Return what exact shards mean for the result and for so many workers, where they are asked for."""
        if (shards := self.exact) is None:
            return None
        in_turn, samples = -(-shards // workers), self.batch_size / self.accumulate / shards
        return (
            f"exact: {shards} logical shards of {samples:.3g} samples, which batch norm sees one at a time. "
            "The weights are those of any number of workers, and not those of a run without --exact. "
            f"At most {in_turn} in turn keep {workers} workers {shards / (workers * in_turn):.0%} busy."
        )

    def check_go_on(self, begun: Mapping[str, Any]) -> None:
        """Refuse to go on with another training than was begun.

        Args:
            begun: its settings by name, as `as_dict` or JSON gave them; of another version, maybe.

        Raises:
            CheckpointError: one is another now.
        """
        for name, value in self.as_dict().items():
            before, now = _plain(begun.get(name, value)), _plain(value)
            if name == "batch_norm":  # earlier versions stored what holds unless it is said
                before, now = (None, None) if self.exact else (before or "global", now or "global")
            if before != now and name not in _COMPUTED_ALIKE:
                raise CheckpointError(
                    f"the run began with {flag(name)} {before}, and its settings now say {now}: that is "
                    "another training. Put it back in config.toml, or begin another run with --config."
                )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return dataclasses.asdict(self)


def _listed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    return list(value) if isinstance(value, tuple) else value
