"""What a script says about its models' inputs, for what cannot be told: which dimension counts samples."""

import inspect
from collections.abc import Mapping
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from samestep.autopilot.plans import Dims, Given
from samestep.base.errors import UsageError
from samestep.watch.tree import Path

M = TypeVar("M", bound=nn.Module)
Declared: TypeAlias = int | Mapping[str, int] | None
_declared: WeakKeyDictionary[nn.Module, Declared] = WeakKeyDictionary()


def split(model: M, *, dim: int | Mapping[str, int] | None) -> M:
    """Say along which dimension the inputs of a model's calls hold the samples.

    For a serial script under ``samestep run -n N``, where this could not be told: it is the one way that is
    tried, and still proved by the first call. Anywhere else it changes nothing.

    Args:
        model: a module that the script calls.
        dim: of all tensors it is called with, but for those that have no such dimension or another size
            there; or of some arguments of its `forward`, by name: others are not split. None keeps the
            model's calls unsplit: every worker computes all of them.

    Returns:
        The model.

    Raises:
        UsageError: `forward` has no such argument.

    Example:
        >>> model = split(nn.LSTM(3, 4), dim={"input": 1, "hx": 1})
    """
    names = list(inspect.signature(model.forward).parameters)
    unknown = [] if dim is None or isinstance(dim, int) else [name for name in dim if name not in names]
    if unknown:
        raise UsageError(
            f"samestep.split: {type(model).__name__}.forward has no argument {unknown[0]!r}. "
            f"Name some of {', '.join(names)}."
        )
    _declared[model] = dim
    return model


def stays_unsplit(module: nn.Module) -> bool:
    """Return whether the script says that calls of a module are not split."""
    owner = _declaring(module)
    return owner is not None and _declared[owner] is None


def declared_dims(module: nn.Module, given: Given) -> Dims | None:
    """Return how the script says that a call is split; None where it says nothing."""
    said = _declaring(module)
    if said is None:
        return None
    dim = _declared[said]
    if dim is None:
        return None
    if not isinstance(dim, int):
        names = list(inspect.signature(said.forward).parameters)
        by_path = {path: dim.get(_argument(path, names)) for path, _ in given.tensors()}
        return {path: one for path, one in by_path.items() if one is not None}
    sizes = {path: tensor.size(dim) for path, tensor in given.tensors() if tensor.dim() > dim}
    total = next(iter(sizes.values()), None)
    return {path: dim for path, size in sizes.items() if size == total}


def _declaring(module: nn.Module) -> nn.Module | None:
    """Return the module of which the script has declared something: the one called, or the one it wraps."""
    inner = [module, getattr(module, "module", None), getattr(module, "_orig_mod", None)]
    return next((one for one in inner if isinstance(one, nn.Module) and one in _declared), None)


def _argument(path: Path, names: list[str]) -> str:
    """Return the name of the argument that holds what is at `path` of all that a module is given."""
    by_name, where = path[:2]
    return str(where) if by_name else names[int(where)] if int(where) < len(names) else ""
