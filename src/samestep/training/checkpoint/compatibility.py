"""Compares saved state with a model, an optimizer or a training before anything is loaded.

Steps, epochs and samples determine each other. With a position that contradicts the data set or itself, a run
would end early or train on other batches.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.training.settings import Settings

_MOST = 1 << 63
_SHOWN = 3  # maximum names listed per difference
_PARTS = frozenset({"state", "param_groups"})
_SWITCHES = frozenset({"capturable", "differentiable", "foreach", "fused", "maximize"})
"""Hyperparameters that later versions of torch added, and fill in if a state lacks them."""
_DISTINCTIVE = frozenset({"amsgrad", "decoupled_weight_decay", "momentum_decay"})
"""Hyperparameters that distinguish Adam and its variants from optimizers with a subset of theirs."""
_ELEMENTWISE = frozenset(
    {
        "acc_delta",
        "ax",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "prev",
        "square_avg",
        "step_size",
        "sum",
    }
)
"""State of torch's optimizers that has the shape of its parameter."""


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


def optimizer_mismatch(saved: Mapping[str, Any], optimizer: Any) -> str | None:
    """Return one line on why `optimizer` cannot load a state, or None.

    Torch compares only the number of parameters. It loads the state of another type of optimizer, and fails
    then or in the next step. Hyperparameters and the names of the state distinguish the types. The optimizer
    is torch's, or another one with such a state dict, and is not changed.
    """
    own = optimizer.state_dict()
    if not own.keys() >= _PARTS:
        return None  # another form than torch's, which the optimizer itself has to check
    if not isinstance(saved, Mapping) or not saved.keys() >= _PARTS:
        has = _first(map(str, saved)) if isinstance(saved, Mapping) else f"a {type(saved).__name__}"
        return f"it is not the state of an optimizer: it has {has or 'nothing'}"
    if not _has_form(saved):
        return "it is not the state of an optimizer: its param_groups or its state have another form"
    counts = [[len(group["params"]) for group in state["param_groups"]] for state in (saved, own)]
    if counts[0] != counts[1]:
        return f"groups of {counts[0]} parameters, in the optimizer {counts[1]}"
    return (
        _hyperparameter_mismatch(saved, own, optimizer)
        or (_odd_value(saved, own) if _is_torchs(optimizer) else None)
        or _shape_mismatch(saved, own, optimizer)
    )


def _has_form(saved: Mapping[str, Any]) -> bool:
    groups, state = saved["param_groups"], saved["state"]
    return (
        isinstance(groups, list)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
        and all(isinstance(key, int) for group in groups for key in group["params"])
        and isinstance(state, dict)
        and all(isinstance(values, dict) for values in state.values())
    )


def _odd_value(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """Return the first value of a wrong type, which torch would only use in a later step."""
    for theirs, mine in zip(saved["param_groups"], own["param_groups"], strict=True):
        for name in sorted(theirs.keys() & _SWITCHES):
            if not isinstance(theirs[name], bool | type(None)):
                return f"its {name} is {_shape(theirs[name])}"
        for name in sorted(theirs.keys() & mine.keys() - {"params"} - _SWITCHES):
            as_tensor = isinstance(theirs[name], Tensor) and not isinstance(mine[name], Tensor)
            if _kind(theirs[name]) != _kind(mine[name]) or (as_tensor and name != "lr"):
                return f"its {name} is {theirs[name]!r:.40}, in the optimizer {mine[name]!r:.40}"
    for key, values in saved["state"].items():
        for name, value in values.items():
            odd = name in _ELEMENTWISE and value is not None and not _has_fractions(value)
            if odd or (name == "step" and _kind(value) != "number"):
                return f"its {name} of parameter {key} is {_shape(value)}"
    return None


def _kind(value: object) -> Any:
    """Return the type of a hyperparameter, with one type for all finite numbers and scalar tensors."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return "number" if abs(value) < _MOST else value  # torch refuses larger ones
    if isinstance(value, float):
        return "number" if math.isfinite(value) else value
    return type(value)


def _has_fractions(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _hyperparameter_mismatch(saved: Mapping[str, Any], own: Mapping[str, Any], optimizer: Any) -> str | None:
    """Compare the hyperparameters that a step needs, and those that distinguish torch's optimizers.

    Names that a script or a schedule has added to its groups are ignored.
    """
    kind, needed = type(optimizer).__name__, getattr(optimizer, "defaults", {}).keys()
    for theirs, mine in zip(saved["param_groups"], own["param_groups"], strict=True):
        # Adam has it since torch implements AdamW by Adam; a state of an earlier torch lacks it.
        switches = _SWITCHES | ({"decoupled_weight_decay"} if "amsgrad" in theirs else set())
        if lacking := needed - theirs.keys() - switches:
            return f"it has no {_first(sorted(lacking))}, which {kind} needs"
        more = (_DISTINCTIVE & theirs.keys()) - mine.keys() - switches
        if more and _is_torchs(optimizer):
            return f"it has {_first(sorted(more))}, which {kind} does not have"
    return None


def _shape_mismatch(saved: Mapping[str, Any], own: Mapping[str, Any], optimizer: Any) -> str | None:
    """Compare the shapes of each parameter's state with those that `optimizer` has or will have."""
    theirs, mine, parameters = (
        [parameter for group in groups for parameter in group["params"]]
        for groups in (saved["param_groups"], own["param_groups"], getattr(optimizer, "param_groups", []))
    )
    differences = []
    for index, (key, own_key) in enumerate(zip(theirs, mine, strict=True)):
        like = dict.fromkeys(_ELEMENTWISE, parameters[index]) if _is_torchs(optimizer) else {}
        like |= own["state"].get(own_key, {})
        differences += [
            f"{name} of parameter {index} {_shape(value)}, in the optimizer {_shape(like[name])}"
            for name, value in saved["state"].get(key, {}).items()
            if _has_shape(value) and _has_shape(like.get(name)) and _shape(value) != _shape(like[name])
        ]
    return f"of another shape: {_first(differences)}" if differences else None


def _is_torchs(optimizer: object) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _has_shape(value: object) -> bool:
    """Return whether a value is a tensor with dimensions; step counts are numbers or scalar tensors."""
    return isinstance(value, Tensor) and value.dim() > 0


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
