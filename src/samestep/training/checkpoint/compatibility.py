"""Compares saved state with a model or a training before anything is loaded.

Steps, epochs and samples determine each other. With a position that contradicts the data set or itself, a run
would end early or train on other batches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.training.settings import Settings

_SHOWN = 3  # maximum names listed per difference


def mismatch(weights: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return one line on how two state dicts differ in names and shapes; None if they do not.

    >>> import torch
    >>> mismatch({"a": torch.zeros(2), "c": torch.zeros(1)}, {"a": torch.zeros(3), "b": torch.zeros(1)})
    'missing: b; unexpected: c; of another shape: a (2,), in the model (3,)'
    """
    shapes = [
        f"{name} {_shape(weights[name])}, in the model {_shape(tensor)}"
        for name, tensor in wanted.items()
        if name in weights and _shape(weights[name]) != _shape(tensor)
    ]
    kinds = {
        "missing": [name for name in wanted if name not in weights],
        "unexpected": [name for name in weights if name not in wanted],
        "of another shape": shapes,
    }
    return "; ".join(f"{kind}: {_first(names)}" for kind, names in kinds.items() if names) or None


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
    size.settings.check_resumable(state["settings"])
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
