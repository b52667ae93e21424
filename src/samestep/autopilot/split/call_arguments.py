"""Holds the arguments of a call, and finds the ways in which they may be split.

Samples are along a dimension of tensors, or they are the parts of a list, such as images of different
sizes, sets or graphs. The script declares the way by `batch_dim`; otherwise all ways that the shapes allow
are tried.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from samestep.autopilot.split.sharded_autograd import BatchSplit, memory_order
from samestep.base.errors import UsageError
from samestep.base.renamed import warn_renamed
from samestep.hooks.tensor_tree import Change, Path, leaves, mapped, parts_of, replaced
from samestep.parallel.sharding import share

Dims: TypeAlias = Mapping[Path, int]
"""The sample dimension of each input that is split; `LIST` for a list whose parts are samples."""
LIST = -1
_NO_DIMS: Dims = MappingProxyType({})
_ALIKE = 4
"""The number of parts from which a list of equal forms holds samples: fewer may be inputs of the model.
A guess."""
_DEEPEST = 4  # depth of the arguments to which lists of samples are searched: a guess


def lists_of_alike(
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
) -> dict[Path, list[list[tuple[Path, Tensor]]]]:
    """Return the lists and tuples of parts with tensors in the same form, as the tensors of each part.

    They are among the arguments: the positional arguments themselves are inputs of a model, however alike.
    """
    lists: dict[Path, list[list[tuple[Path, Tensor]]]] = {}
    waiting: list[tuple[Path, Any]] = [
        ((place, key), part) for place, either in enumerate(arguments) for key, part in parts_of(either)
    ]
    while waiting:
        path, value = waiting.pop(0)
        parts: list[tuple[Path, Any]] = [((*path, key), part) for key, part in parts_of(value)]
        inside = [list(leaves(part, below)) for below, part in parts]
        forms = [
            [(path_of_tensor[len(path) + 1 :], x.dim(), x.dtype) for path_of_tensor, x in part]
            for part in inside
        ]
        is_list = isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and len(parts) >= _ALIKE
        if is_list and forms[0] and forms.count(forms[0]) == len(forms):
            lists[path] = inside
        elif len(path) <= _DEEPEST:
            waiting += parts
    return lists


def depth_of_list(path: Path, dims: Dims) -> int | None:
    """Return the length of the path to the list of samples with the tensor at `path`; None without one."""
    if LIST not in dims.values():
        return None
    return next((depth for depth in range(1, len(path)) if dims.get(path[:depth]) == LIST), None)


def is_split(path: Path, dims: Dims) -> bool:
    """Return whether the tensor at `path` is split, or belongs to a list that is."""
    return path in dims or depth_of_list(path, dims) is not None


def input_of(path: Path, dims: Dims) -> Path:
    """Return the path of an input; it is the same for all parts of a list of samples."""
    depth = depth_of_list(path, dims)
    return path if depth is None else (*path[:depth], LIST, *path[depth + 1 :])


def lists_in(value: Any, dims: Dims) -> dict[Path, list[Any] | tuple[Any, ...]]:
    """Return the lists of samples with their paths."""
    return {path: _value_at(value, path) for path, dim in dims.items() if dim == LIST}


def selected(value: Any, dims: Dims, places: Iterable[int]) -> Any:
    """Return `value` with the samples at `places` of each list of samples; everything else is shared."""
    chosen = list(places)
    lists = lists_in(value, dims).items()
    return replaced(
        value, {path: type(samples)([samples[place] for place in chosen]) for path, samples in lists}
    )


def unequal_sizes(value: Any, dims: Dims, ranks: int) -> set[tuple[Path, int, str]]:
    """Return the sizes that differ between the slices of lists, by input and dimension.

    A forward may pad a slice to its largest part, cut it to its smallest, or have nothing to compute.
    """
    differing: set[tuple[Path, int, str]] = set()
    for path, parts in lists_in(value, dims).items():
        sizes: defaultdict[tuple[Path, int], defaultdict[int, list[int]]]
        sizes = defaultdict(lambda: defaultdict(list))
        for rank in range(ranks):
            for place in share(len(parts), rank, ranks):
                for below, tensor in leaves(parts[place]):
                    for dim, size in enumerate(tensor.shape):
                        sizes[(*path, LIST, *below), dim][rank].append(size)
        for where, slices in sizes.items():
            largest = {max(sizes_of_rank) for sizes_of_rank in slices.values()}
            smallest = {min(sizes_of_rank) for sizes_of_rank in slices.values()}
            is_empty = {int(size == 0) for size in largest}
            kinds = {"largest": largest, "smallest": smallest, "empty": is_empty}
            differing |= {(*where, kind) for kind, values in kinds.items() if len(values) > 1}
    return differing


def unequal_values(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> frozenset[Path]:
    """Return the places, in lists and arrays beside tensors, of numbers and texts that are not all equal.

    A list may have a part for each sample, such as a length. While all parts are equal, each slice can take
    the first ones.
    """
    unequal: set[Path] = set()
    waiting: list[tuple[Path, Any]] = [
        ((place, key), part) for place, either in enumerate(arguments) for key, part in parts_of(either)
    ]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, np.ndarray):
            if value.ndim and value.dtype != object and bool((value[:1] != value).any()):
                unequal.add(path)
        elif isinstance(value, (list, tuple)):
            first: dict[Path, Any] = {}
            for (_, *below), number in _values_below((), value):
                where = (LIST, *below)
                if first.setdefault(where, number) != number:
                    unequal.add((*path, *where))
        elif len(path) <= _DEEPEST:
            waiting += [((*path, key), part) for key, part in parts_of(value)]
    return frozenset(unequal)


def _values_below(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the flags, numbers and texts in a value."""
    if isinstance(value, (bool, int, float, str)):
        yield path, value
        if isinstance(value, str):
            yield (*path, "length"), len(value)
    elif not isinstance(value, Tensor) and len(path) <= _DEEPEST:
        for key, part in parts_of(value):
            yield from _values_below((*path, key), part)


def _value_at(value: Any, path: Path) -> Any:
    for key in path:
        value = dict(parts_of(value))[key]
    return value


_Tensors: TypeAlias = Sequence[tuple[Path, Tensor]]


@dataclass(frozen=True)
class CallArguments:
    """The arguments of a module's call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> list[tuple[Path, Tensor]]:
        """Return the dense tensors with at least one dimension, each with its place."""
        return self._tensors

    @cached_property
    def _tensors(self) -> list[tuple[Path, Tensor]]:
        return [(path, tensor) for path, tensor in leaves(self.both) if tensor.dim() and _is_dense(tensor)]

    @property
    def both(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the named arguments, as one structure, in which all paths begin."""
        return self.args, dict(self.kwargs)

    def may_have_samples(self, count: int) -> bool:
        """Return whether a first or second dimension, or a list, is long enough for so many samples."""
        return any(max(tensor.shape[:2]) >= count for _, tensor in self.tensors()) or any(
            len(parts) >= count for parts in lists_of_alike(self.both).values()
        )

    def samples(self, dims: Dims) -> Iterator[Tensor]:
        """Yield the tensors that are split, and those of lists that are."""
        return (tensor for path, tensor in self.tensors() if is_split(path, dims))

    def changed(self, change: Change, dims: Dims = _NO_DIMS) -> "CallArguments":
        """Return the arguments with each tensor replaced.

        A tensor at several places stays one: a forward may ask whether its arguments are the same object. If
        it is split in different ways there, it becomes several, and so do samples that a list repeats.
        """
        results: dict[tuple[int, int | None], Any] = {}

        def once(path: Path, tensor: Tensor) -> Any:
            if depth_of_list(path, dims) is not None:
                return change(path, tensor)
            key = id(tensor), dims.get(path)
            if key not in results:
                results[key] = change(path, tensor)
            return results[key]

        return CallArguments(*mapped(self.both, once))

    @cached_property
    def first_places(self) -> Mapping[Path, Path]:
        """The first place of each tensor that has several, by the later ones."""
        first: dict[int, Path] = {}
        places = {path: first.setdefault(id(tensor), path) for path, tensor in leaves(self.both)}
        return {path: place for path, place in places.items() if path != place}

    def joined(self, first_places: Mapping[Path, Path]) -> "CallArguments":
        """Return arguments that were received from another process, with one tensor at several places."""
        if not first_places:
            return self
        by_path = dict(leaves(self.both))
        return CallArguments(*mapped(self.both, lambda path, _: by_path[first_places.get(path, path)]))

    def copied(self) -> "CallArguments":
        """Return the arguments with copies of all tensors, which are parameters if these are."""
        return self.changed(lambda _, tensor: _copied(tensor))

    def same(self, second: "CallArguments") -> bool:
        """Return whether the tensors of both hold the same numbers."""
        if len(self.tensors()) != len(second.tensors()):
            return False
        pairs = zip(self.tensors(), second.tensors(), strict=True)
        return all(
            tensor.shape == counterpart.shape and bool(((tensor == counterpart) | (tensor != tensor)).all())  # noqa: PLR0124 - NaN
            for (_, tensor), (_, counterpart) in pairs
        )

    def form(self) -> tuple[Any, ...]:
        """Return the tensors' part of the call signature: all that a forward may ask of them but sizes."""
        of_tensors = ((path, *_form(tensor)) for path, tensor in leaves(self.both))
        return *of_tensors, *self.first_places.items()

    def total(self, dims: Dims) -> int | None:
        """Return the number of samples; None if the inputs do not agree on it.

        None as well if tensors in a list of samples require gradients: a rank would have only its own.
        """
        lists = lists_in(self.both, dims).values()
        if any(tensor.requires_grad for _, tensor in leaves(list(lists))):
            return None
        sizes = {tensor.size(dims[path]) for path, tensor in self.tensors() if path in dims}
        sizes |= set(map(len, lists))
        return sizes.pop() if len(sizes) == 1 else None

    def sliced(self, split: BatchSplit, dims: Dims) -> "CallArguments":
        """Return the arguments of this rank's slice."""

        def sliced(path: Path, tensor: Tensor) -> Tensor:
            if path in dims:
                return split.sliced(tensor, dims[path])
            return tensor if is_split(path, dims) else split.shared(tensor)

        places = range(split.start, split.start + split.local)
        return CallArguments(*selected(self.both, dims, places)).changed(sliced, dims)


def _copied(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        copy._is_param = True  # noqa: SLF001 - what `isinstance` asks for
    return copy


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """Return the class of a tensor and its part in the graph, its type, and its layout in memory."""
    in_graph = type(tensor), tensor.requires_grad, tensor.is_leaf, tensor.is_inference()
    is_ordered = not _is_dense(tensor) or tensor.is_contiguous()
    order = () if is_ordered else tuple(memory_order(tensor))  # that of channels last is one of several
    return *in_graph, tensor.dim(), tensor.dtype, tensor.layout, order


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has strides: neither a sparse one, nor a nested one, which has no sizes."""
    return tensor.layout == torch.strided and not tensor.is_nested


def candidates(arguments: CallArguments, size: int) -> Iterator[Dims]:
    """Yield the ways in which the inputs may be split for `size` ranks, likeliest first.

    The sample dimension may be the first one of any tensor, or the second: sequences may be time-first, and
    hidden states have a dimension of layers first. Ways that split more inputs come first: a model may match
    an unsplit input with the samples by position. The parts of a list may be the samples; the hundreds of
    ways to split one image or graph of a list are left out.
    """
    tensors, lists = arguments.tensors(), lists_of_alike(arguments.both)
    seen = [
        *_ways_by(0, tensors, size),
        *_ways_by_list(tensors, lists, size),
        *_ways_by(1, tensors, size),
    ]
    for place, dims in enumerate(seen):
        if dims not in seen[:place] and not any(_is_of_some(parts, dims) for parts in lists.values()):
            yield dims


def _ways_by(dim: int, tensors: _Tensors, size: int) -> Iterator[Dims]:
    """Yield the ways in which some tensor is split along `dim`."""
    for path, tensor in tensors:
        if tensor.dim() <= dim or tensor.size(dim) < size:
            continue
        total = tensor.size(dim)
        for least in (1, 2):
            yield {**_dims_of_size(tensors, total, least), path: dim}
        yield {path: dim}


def _ways_by_list(tensors: _Tensors, lists: Mapping[Path, Sequence[_Tensors]], size: int) -> Iterator[Dims]:
    """Yield the ways in which a list of samples is split, and other inputs with as many samples."""
    for total in dict.fromkeys(map(len, lists.values())):
        lists_of_total = {path: LIST for path, parts in lists.items() if len(parts) == total}
        inside = [tensor for path in lists_of_total for part in lists[path] for _, tensor in part]
        if total < size or any(tensor.requires_grad for tensor in inside):
            continue
        remaining = [(path, tensor) for path, tensor in tensors if not is_split(path, lists_of_total)]
        for least in (1, 2):
            yield {**_dims_of_size(remaining, total, least), **lists_of_total}
        yield lists_of_total


def _dims_of_size(tensors: _Tensors, total: int, least: int) -> Dims:
    dims = {path: _sample_dim(tensor, total, least) for path, tensor in tensors}
    return {path: dim for path, dim in dims.items() if dim is not None}


def _is_of_some(parts: Sequence[_Tensors], dims: Dims) -> bool:
    """Return whether a way splits some parts of a list and not the others: these parts are samples."""
    split = [any(path in dims for path, _ in part) for part in parts]
    return any(split) and not all(split)


def _sample_dim(tensor: Tensor, total: int, least: int) -> int | None:
    """Return the dimension of size `total`: the first, or the second of more than `least`; else None."""
    if tensor.size(0) == total:
        return 0
    return 1 if tensor.dim() > least and tensor.size(1) == total else None


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


def declared_dims(module: nn.Module, arguments: CallArguments) -> Dims | None:
    """Return the declared sample dimension of each input of a call; None without a declaration."""
    owner = _declaring(module)
    if owner is None:
        return None
    dim = _declared[owner]
    if dim is None:
        return None
    if not isinstance(dim, int):
        names = list(inspect.signature(owner.forward).parameters)
        by_path = {path: dim.get(_argument(path, names)) for path, _ in arguments.tensors()}
        return {path: dim_of_path for path, dim_of_path in by_path.items() if dim_of_path is not None}
    sizes = {path: tensor.size(dim) for path, tensor in arguments.tensors() if tensor.dim() > dim}
    total = next(iter(sizes.values()), None)
    return {path: dim for path, size in sizes.items() if size == total}


def _declaring(module: nn.Module) -> nn.Module | None:
    """Return the module with a declaration: the called one, or the one that it wraps; None for neither."""
    inner = [module, getattr(module, "module", None), getattr(module, "_orig_mod", None)]
    return next((part for part in inner if isinstance(part, nn.Module) and part in _declared), None)


def _argument(path: Path, names: list[str]) -> str:
    """Return the name of the argument to which the tensor at `path` belongs."""
    by_name, where = path[:2]
    return str(where) if by_name else names[int(where)] if int(where) < len(names) else ""
