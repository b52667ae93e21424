"""Checks where a checkpoint says that a training stood, before anything is changed.

The numbers follow from each other: a training that has used so many samples of its data set has taken so many
steps. A position that contradicts the data set or itself would end a run early, or train on other batches.
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
class Extent:
    """What a training goes through."""

    settings: Settings
    num_samples: int
    """Of the training set."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, the last of which may be smaller."""
        return -(-self.num_samples // self.settings.batch_size)


def check_standing(state: Mapping[str, Any], extent: Extent) -> None:
    """Refuse a state that no training of this extent has had.

    Args:
        state: of the checkpoint, with every key that a training needs.
        extent: of the training that is to go on from it.

    Raises:
        CheckpointError: names the value, or the setting that is another.
    """
    for name in _COUNTS:
        value = state[name]
        if type(value) is not int or value < 0:
            raise _refusal(name, value, "a whole number of 0 or more is expected")
    for name in _FIGURES:
        if type(state[name]) not in (int, float):
            raise _refusal(name, state[name], "a number is expected")
    for name, kind in (("unjudged", bool), ("settings", dict), ("identity", dict)):
        if name in state and type(state[name]) is not kind:
            raise _refusal(name, state[name], f"a {kind.__name__} is expected")
    if not 0 <= state["best"] <= 1:
        raise _refusal("best", state["best"], "an accuracy is between 0 and 1")
    if not 0 <= state["seconds"] < math.inf:
        raise _refusal("seconds", state["seconds"], "a time is a finite number of 0 or more")
    extent.settings.check_go_on(state.get("settings", {}))
    _check_position(state, extent)


def _check_position(state: Mapping[str, Any], extent: Extent) -> None:
    settings, count = extent.settings, extent.num_samples
    epoch, samples = state["epoch"], state["samples"]
    if state["seed"] != settings.seed:
        raise _refusal("seed", state["seed"], f"the run has --seed {settings.seed}")
    if epoch > settings.epochs or (epoch == settings.epochs and samples):
        raise _refusal("epoch", epoch, f"the training has {settings.epochs} epochs")
    if samples >= count:
        raise _refusal("samples", samples, f"the data set holds {count}; use the one that the run began with")
    if samples % settings.batch_size:
        raise _refusal("samples", samples, f"a step takes {settings.batch_size}")
    step = epoch * extent.steps_per_epoch + samples // settings.batch_size
    total = epoch * count + samples
    for name, value in (("step", step), ("samples_total", total)):
        if state[name] != value:
            raise _refusal(
                name,
                state[name],
                f"after {epoch} epochs of {count} samples and {samples} more it is {value}; use the data set "
                "and the --subset that the run began with",
            )
    if state["loss_count"] > total:
        raise _refusal("loss_count", state["loss_count"], f"{total} samples were used")


def _refusal(name: str, value: object, why: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint has {name} {value!r:.60}: {why}.")
