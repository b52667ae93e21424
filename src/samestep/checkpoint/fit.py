"""Whether weights belong to a model: told before anything is changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

_SHOWN = 3
"""Names told of each kind of difference: more are no clearer."""


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


def optimizer_misfit(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """Return how the state dicts of two optimizers differ in their groups of parameters, or None."""
    if not {"state", "param_groups"} <= saved.keys():
        return f"it is no optimizer's state: it has {_first(saved) or 'nothing'}"
    counts = [[len(group["params"]) for group in state["param_groups"]] for state in (saved, own)]
    if counts[0] != counts[1]:
        return f"groups of {counts[0]} parameters, in the optimizer of {counts[1]}"
    return None


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
