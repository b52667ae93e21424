"""Whether weights belong to a model: told before anything is changed."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

_MOST = 1 << 63
_SHOWN = 3
"""Names told of each kind of difference: more are no clearer."""
_PARTS = frozenset({"state", "param_groups"})
_SWITCHES = frozenset({"capturable", "differentiable", "foreach", "fused", "maximize"})
"""Hyperparameters that torch has added over time, and fills in where a state lacks them."""
_TELLING = frozenset({"amsgrad", "decoupled_weight_decay", "momentum_decay"})
"""By these alone the kinds that descend from Adam differ from those that need no more than its other ones."""
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
"""What torch's optimizers keep for each element of a parameter, in its shape."""


def misfit(weights: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return how two state dicts differ in names and shapes, in one line; None if they do not.

    Args:
        weights: what was found.
        wanted: the model's own.

    >>> import torch
    >>> misfit({"a": torch.zeros(2), "c": torch.zeros(1)}, {"a": torch.zeros(3), "b": torch.zeros(1)})
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
    told = [f"{kind}: {_first(names)}" for kind, names in kinds.items() if names]
    return "; ".join(told) or None


def optimizer_misfit(saved: Mapping[str, Any], optimizer: Any) -> str | None:
    """Return in one line why `optimizer` could not go on from a state, or None.

    Torch compares the number of parameters alone: of another kind of optimizer it takes a state over, and
    fails on the way or in the next step. Hyperparameters and state tell the kinds apart.

    Args:
        saved: the state dict that was found.
        optimizer: torch's or another with such a state dict; it is not changed.
    """
    own = optimizer.state_dict()
    if not own.keys() >= _PARTS:
        return None  # of a form of its own: it has to look for itself
    if not isinstance(saved, Mapping) or not saved.keys() >= _PARTS:
        has = _first(map(str, saved)) if isinstance(saved, Mapping) else f"a {type(saved).__name__}"
        return f"it is no optimizer's state: it has {has or 'nothing'}"
    if not _has_form(saved):
        return "it is no optimizer's state: its groups are no lists of parameters with their values"
    counts = [[len(group["params"]) for group in state["param_groups"]] for state in (saved, own)]
    if counts[0] != counts[1]:
        return f"groups of {counts[0]} parameters, in the optimizer of {counts[1]}"
    return (
        _kind_misfit(saved, own, optimizer)
        or (_odd_value(saved, own) if _is_torchs(optimizer) else None)
        or _shape_misfit(saved, own, optimizer)
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
    """Return the first value of another kind than the optimizer's own, which only a later step would meet."""
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
    """Return what kind of value a hyperparameter is; finite numbers are of one kind, in tensors too."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return "number" if abs(value) < _MOST else value  # torch takes no larger one
    if isinstance(value, float):
        return "number" if math.isfinite(value) else value
    return type(value)


def _has_fractions(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _kind_misfit(saved: Mapping[str, Any], own: Mapping[str, Any], optimizer: Any) -> str | None:
    """Compare hyperparameters: those that a step needs, and those by which torch's own kinds differ.

    A name that a script or a schedule has added to its groups is nobody's business here.
    """
    kind, needed = type(optimizer).__name__, getattr(optimizer, "defaults", {}).keys()
    for theirs, mine in zip(saved["param_groups"], own["param_groups"], strict=True):
        # Adam has it since it is AdamW as well; other kinds always had, or never.
        switches = _SWITCHES | ({"decoupled_weight_decay"} if "amsgrad" in theirs else set())
        if lacking := needed - theirs.keys() - switches:
            return f"it has no {_first(sorted(lacking))}, which {kind} needs"
        more = (_TELLING & theirs.keys()) - mine.keys() - switches
        if more and _is_torchs(optimizer):
            return f"it has {_first(sorted(more))}, which {kind} does not know"
    return None


def _shape_misfit(saved: Mapping[str, Any], own: Mapping[str, Any], optimizer: Any) -> str | None:
    """Compare what was kept of each parameter with what `optimizer` keeps, or will once it has stepped."""
    theirs, mine, parameters = (
        [parameter for group in groups for parameter in group["params"]]
        for groups in (saved["param_groups"], own["param_groups"], getattr(optimizer, "param_groups", []))
    )
    told = []
    for index, (key, own_key) in enumerate(zip(theirs, mine, strict=True)):
        like = dict.fromkeys(_ELEMENTWISE, parameters[index]) if _is_torchs(optimizer) else {}
        like |= own["state"].get(own_key, {})
        told += [
            f"{name} of parameter {index} {_shape(value)}, in the optimizer {_shape(like[name])}"
            for name, value in saved["state"].get(key, {}).items()
            if _has_shape(value) and _has_shape(like.get(name)) and _shape(value) != _shape(like[name])
        ]
    return f"of another shape: {_first(told)}" if told else None


def _is_torchs(optimizer: object) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _has_shape(value: object) -> bool:
    """Whether a value is a tensor of more than a number: steps are counted in either."""
    return isinstance(value, Tensor) and value.dim() > 0


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
