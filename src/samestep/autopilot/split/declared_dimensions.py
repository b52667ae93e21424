"""Lets a script declare the sample dimension of a model's inputs, if samestep cannot infer it."""

import inspect
from collections.abc import Mapping
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.sample_lists import Dims
from samestep.base.errors import UsageError
from samestep.base.renamed import warn_renamed
from samestep.hooks.tensor_tree import Path

M = TypeVar("M", bound=nn.Module)
Declared: TypeAlias = int | Mapping[str, int] | None
_declared: WeakKeyDictionary[nn.Module, Declared] = WeakKeyDictionary()


def batch_dim(model: M, *, dim: int | Mapping[str, int] | None) -> M:
    """Declare the sample dimension of a model's inputs.

    This is for a serial script under ``samestep run -n N``, if samestep cannot infer the dimension. The
    equivalence check then tests only the declared way. Without samestep this has no effect.

    Args:
        model: a module that the script calls.
        dim: the sample dimension of all tensor arguments, except those without this dimension or with another
            size there; or the sample dimensions of some arguments of `forward`, by name, while the others are
            not split. None keeps the model's calls unsplit: every worker computes all of them.

    Returns:
        The model.

    Raises:
        UsageError: `forward` has no such argument.

    Example:
        >>> model = batch_dim(nn.LSTM(3, 4), dim={"input": 1, "hx": 1})
    """
    names = list(inspect.signature(model.forward).parameters)
    unknown = [] if dim is None or isinstance(dim, int) else [name for name in dim if name not in names]
    if unknown:
        raise UsageError(
            f"samestep.batch_dim: {type(model).__name__}.forward has no argument {unknown[0]!r}. "
            f"Name some of {', '.join(names)}."
        )
    _declared[model] = dim
    return model


def split(model: M, *, dim: int | Mapping[str, int] | None) -> M:
    """Call `batch_dim`, under the name that it had before 0.2."""
    warn_renamed("samestep.split", "samestep.batch_dim")
    return batch_dim(model, dim=dim)


def stays_unsplit(module: nn.Module) -> bool:
    """Return whether the script has declared that calls of a module are not split."""
    owner = _declaring(module)
    return owner is not None and _declared[owner] is None


def declared_dims(module: nn.Module, given: CallArguments) -> Dims | None:
    """Return the declared sample dimension of each input of a call; None without a declaration."""
    owner = _declaring(module)
    if owner is None:
        return None
    dim = _declared[owner]
    if dim is None:
        return None
    if not isinstance(dim, int):
        names = list(inspect.signature(owner.forward).parameters)
        by_path = {path: dim.get(_argument(path, names)) for path, _ in given.tensors()}
        return {path: one for path, one in by_path.items() if one is not None}
    sizes = {path: tensor.size(dim) for path, tensor in given.tensors() if tensor.dim() > dim}
    total = next(iter(sizes.values()), None)
    return {path: dim for path, size in sizes.items() if size == total}


def _declaring(module: nn.Module) -> nn.Module | None:
    """Return the module with a declaration: the called one, or the one that it wraps; None for neither."""
    inner = [module, getattr(module, "module", None), getattr(module, "_orig_mod", None)]
    return next((one for one in inner if isinstance(one, nn.Module) and one in _declared), None)


def _argument(path: Path, names: list[str]) -> str:
    """Return the name of the argument to which the tensor at `path` belongs."""
    by_name, where = path[:2]
    return str(where) if by_name else names[int(where)] if int(where) < len(names) else ""
