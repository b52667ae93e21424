"""Finds and slices lists whose parts are samples, such as images of different sizes, sets or graphs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from samestep.hooks.tensor_tree import Path, leaves, parts_of, replaced
from samestep.parallel.sharding import share

Dims: TypeAlias = Mapping[Path, int]
"""The sample dimension of each input that is split; `LIST` for a list whose parts are samples."""
LIST = -1
_ALIKE = 4
"""The number of parts from which a list of equal forms holds samples: fewer may be inputs of the model."""
_DEEPEST = 4  # of the arguments


def lists_of_alike(value: Any) -> dict[Path, list[list[tuple[Path, Tensor]]]]:
    """Return the lists and tuples of parts with tensors in the same form, as the tensors of each part."""
    found: dict[Path, list[list[tuple[Path, Tensor]]]] = {}
    waiting: list[tuple[Path, Any]] = [((key,), part) for key, part in parts_of(value)]
    while waiting:
        path, value = waiting.pop(0)
        parts: list[tuple[Path, Any]] = [((*path, key), part) for key, part in parts_of(value)]
        inside = [list(leaves(part, below)) for below, part in parts]
        forms = [[(one[len(path) + 1 :], x.dim(), x.dtype) for one, x in part] for part in inside]
        is_list = isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and len(parts) >= _ALIKE
        if is_list and forms[0] and forms.count(forms[0]) == len(forms):
            found[path] = inside
        elif len(path) <= _DEEPEST:
            waiting += parts
    return found


def depth_of_list(path: Path, dims: Dims) -> int | None:
    """Return the length of the path to the list of samples with the tensor at `path`; None without one."""
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
    return {path: _at(value, path) for path, dim in dims.items() if dim == LIST}


def selected(value: Any, dims: Dims, places: Iterable[int]) -> Any:
    """Return `value` with the samples at `places` of each list of samples; everything else is shared."""
    chosen = list(places)
    lists = lists_in(value, dims).items()
    return replaced(value, {path: type(one)([one[place] for place in chosen]) for path, one in lists})


def unequal_sizes(value: Any, dims: Dims, ranks: int) -> set[tuple[Path, int, str]]:
    """Return the sizes that differ between the slices of lists, by input and dimension.

    A forward may pad a slice to its largest part, cut it to its smallest, or have nothing to compute.
    """
    found: set[tuple[Path, int, str]] = set()
    for path, parts in lists_in(value, dims).items():
        sizes: defaultdict[tuple[Path, int], defaultdict[int, list[int]]]
        sizes = defaultdict(lambda: defaultdict(list))
        for rank in range(ranks):
            for place in share(len(parts), rank, ranks):
                for below, tensor in leaves(parts[place]):
                    for dim, size in enumerate(tensor.shape):
                        sizes[(*path, LIST, *below), dim][rank].append(size)
        for where, slices in sizes.items():
            largest = {max(one) for one in slices.values()}
            smallest = {min(one) for one in slices.values()}
            is_empty = {int(one == 0) for one in largest}
            kinds = {"largest": largest, "smallest": smallest, "empty": is_empty}
            found |= {(*where, kind) for kind, values in kinds.items() if len(values) > 1}
    return found


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = dict(parts_of(value))[key]
    return value
