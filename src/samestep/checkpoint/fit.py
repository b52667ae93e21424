"""Whether weights belong to a model: told before anything is changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

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
    if not saved.keys() >= _PARTS:
        return f"it is no optimizer's state: it has {_first(saved) or 'nothing'}"
    counts = [[len(group["params"]) for group in state["param_groups"]] for state in (saved, own)]
    if counts[0] != counts[1]:
        return f"groups of {counts[0]} parameters, in the optimizer of {counts[1]}"
    return _kind_misfit(saved, own, optimizer) or _shape_misfit(saved, own, optimizer)


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
