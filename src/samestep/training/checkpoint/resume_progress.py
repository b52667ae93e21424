"""Checks the progress recorded in a checkpoint against the training that resumes from it.

Steps, epochs and samples determine each other. With a position that contradicts the data set or itself, a run
would end early or train on other batches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samestep.base.errors import CheckpointError
from samestep.training.settings import Settings

_COUNTS = ("seed", "epoch", "samples", "step", "samples_total", "loss_count")
_FIGURES = ("loss_sum", "seconds", "best")


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """The settings and the number of samples of a training."""

    settings: Settings
    num_samples: int  # samples of the training set

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, including a smaller last one."""
        return -(-self.num_samples // self.settings.batch_size)


def check_progress(state: Mapping[str, Any], size: TrainingSize) -> None:
    """Check that `state`, which has every key that a training needs, is possible in a training of this size.

    Raises:
        CheckpointError: names the value, or the setting that differs.
    """
    for name in _COUNTS:
        value = state[name]
        if type(value) is not int or value < 0:
            raise _refusal(name, value, "an integer of 0 or more is expected")
    for name in _FIGURES:
        if type(state[name]) not in (int, float):
            raise _refusal(name, state[name], "a number is expected")
    for name, kind in (("unjudged", bool), ("settings", dict), ("identity", dict)):
        if name in state and type(state[name]) is not kind:
            raise _refusal(name, state[name], f"a {kind.__name__} is expected")
    if not 0 <= state["best"] <= 1:
        raise _refusal("best", state["best"], "an accuracy of 0 to 1 is expected")
    if not 0 <= state["seconds"] < math.inf:
        raise _refusal("seconds", state["seconds"], "a finite number of 0 or more is expected")
    size.settings.check_resumable(state.get("settings", {}))
    _check_position(state, size)


def _check_position(state: Mapping[str, Any], size: TrainingSize) -> None:
    settings, count = size.settings, size.num_samples
    epoch, samples = state["epoch"], state["samples"]
    if state["seed"] != settings.seed:
        raise _refusal("seed", state["seed"], f"the run has --seed {settings.seed}")
    if epoch > settings.epochs or (epoch == settings.epochs and samples):
        raise _refusal("epoch", epoch, f"the training has {settings.epochs} epochs")
    if samples >= count:
        raise _refusal("samples", samples, f"the data set has {count}; use that of the first start")
    if samples % settings.batch_size:
        raise _refusal("samples", samples, f"a multiple of the batch size {settings.batch_size} is expected")
    step = epoch * size.steps_per_epoch + samples // settings.batch_size
    total = epoch * count + samples
    for name, value in (("step", step), ("samples_total", total)):
        if state[name] != value:
            raise _refusal(
                name,
                state[name],
                f"{epoch} epochs of {count} samples and {samples} more make {value}; use the data set and "
                "the --subset of the first start",
            )
    if state["loss_count"] > total:
        raise _refusal("loss_count", state["loss_count"], f"at most {total}, the samples used, is expected")


def _refusal(name: str, value: object, why: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint has {name} {value!r:.60}: {why}.")
