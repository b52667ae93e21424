"""Finds the results of a slice that are views, and makes those of the whole batch the same views.

::

    hidden = self.layer(x)
    return hidden, hidden[:, :2], x.view(-1, 2, 2)

A write to `hidden` changes the second result, too, and one to `x` the third. Gathered results have memory of
their own, so each such result is taken again as a view of the gathered tensor, or of the script's argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samestep.autopilot.split.call_arguments import CallArguments, Dims, depth_of_list
from samestep.autopilot.state.reachable_state import reached
from samestep.hooks import module_parts
from samestep.hooks.tensor_tree import Path, leaves, mapped

SHARES = "its outputs share memory in a way that gathered ones could not"
Geometry: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""The sizes, strides and offset of a tensor in its memory."""


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """A result that is a view of another tensor, or that tensor itself."""

    base: Path | Tensor
    """The path of a result, or a tensor of the script."""
    start: Sequence[int]
    """The place of its first element in the base, by dimension."""
    steps: Sequence[Sequence[int]]
    """For each of its dimensions, the steps in the base, by dimension."""
    is_detached: bool
    is_base: bool

    def of(self, base: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the view of these sizes.

        Raises:
            RuntimeError: the base is too small for it.
        """
        if self.is_base:
            return base
        strides = base.stride()
        return (base.detach() if self.is_detached else base).as_strided(
            sizes,
            [_dot(steps, strides) for steps in self.steps],
            base.storage_offset() + _dot(self.start, strides),
        )


def _dot(steps: Sequence[int], strides: Sequence[int]) -> int:
    return sum(count * stride for count, stride in zip(steps, strides, strict=True))


def views_in(
    parts: Mapping[Path, Tensor], beside: Iterable[tuple[Tensor, Tensor]]
) -> dict[Path, View] | None:
    """Return the views among the results of a slice, each after the result that it is a view of.

    Args:
        parts: the results.
        beside: the slices of arguments, and the tensors of the module, each with the script's tensor.

    Returns:
        None if a result shares memory in another way, for instance a part of that of another one.
    """
    known: dict[int, list[tuple[Tensor, Path | Tensor]]] = {}
    for part, tensor in beside:
        if _has_memory(part):
            known.setdefault(_memory(part), []).append((part, tensor))
    views: dict[Path, View] = {}
    distinct = {id(part): (path, part) for path, part in [*parts.items()][::-1] if _has_memory(part)}
    # A base comes before its views.
    for path, part in sorted(distinct.values(), key=lambda item: _order(item[1])):
        sharing = known.setdefault(_memory(part), [])
        relations = [_view(part, base_part, base) for base_part, base in sharing]
        view = next((relation for relation in relations if isinstance(relation, View)), None)
        if view is not None:
            views[path] = view
        elif not all(relations):
            return None
        sharing.append((part, path))
    return views


def tensors_beside(
    module: nn.Module, part: CallArguments, whole: CallArguments, dims: Dims, states: Any
) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors of which a result of a slice may be a view, each with that of the script.

    Args:
        module: the module, before it computes the slice.
        part: the arguments of the slice.
        whole: the arguments of the script.
        dims: the way to split them.
        states: the side outputs of an earlier call, which are slices.
    """
    arguments, sliced = dict(leaves(whole.both)), {id(tensor) for _, tensor in leaves(states)}
    of_module = [*module_parts.parameters(module), *module_parts.buffers(module)]
    of_module += [value for _, value in reached(module) if isinstance(value, Tensor)]
    return [
        *(
            (tensor, arguments[path])
            for path, tensor in leaves(part.both)
            if depth_of_list(path, dims) is None
        ),
        *((tensor, tensor) for tensor in of_module if id(tensor) not in sliced),
    ]


def with_views(value: Any, views: Mapping[Path, View]) -> Any:
    """Return results in which those that are views are views.

    Raises:
        RuntimeError: a result is too small for one.
    """
    if not views:
        return value
    by_path, new = dict(leaves(value)), dict[int, Tensor]()
    for path, view in views.items():
        base = view.base if isinstance(view.base, Tensor) else by_path[view.base]
        new[id(by_path[path])] = view.of(new.get(id(base), base), by_path[path].shape)
    return mapped(value, lambda _, tensor: new.get(id(tensor), tensor))


def have_values_of(views: Mapping[Path, View], value: Any) -> bool:
    """Return whether the views of gathered results have the numbers that were gathered for them."""
    try:
        with torch.no_grad():
            taken = dict(leaves(with_views(value, views)))
    except RuntimeError:
        return False
    gathered = dict(leaves(value))
    return all(torch.allclose(taken[path], gathered[path], equal_nan=True) for path in views)


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and tensor.numel() > 0


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _order(part: Tensor) -> tuple[bool, bool, int]:
    return not part.requires_grad, part._is_view(), -part.numel()  # noqa: SLF001 - no public spelling


_APART = "apart"
_Steps: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""See `View.start` and `View.steps`."""


def _view(part: Tensor, base_part: Tensor, base: Path | Tensor) -> View | str:
    """Return a result as a view of a tensor; `_APART` if they share no element, else an empty text."""
    if part is base_part:
        return View(base, (), (), is_detached=False, is_base=True)
    if part.dtype != base_part.dtype:
        return ""
    offset = part.storage_offset() - base_part.storage_offset()
    place = _steps(
        (tuple(base_part.shape), base_part.stride(), max(0, -offset)),
        (tuple(part.shape), part.stride(), max(0, offset)),
    )
    if place is None or isinstance(place, str):
        return place or ""
    is_like = part.is_conj() == base_part.is_conj() and part.is_neg() == base_part.is_neg()
    if not (is_like and type(part) is Tensor and _is_differentiated(part, base_part)):
        return ""
    return View(base, *place, is_detached=not part.requires_grad, is_base=False)


def _is_differentiated(part: Tensor, base_part: Tensor) -> bool:
    """Return whether the gradient of a result, if it has one, is that of a view of a tensor."""
    if not part.requires_grad:
        return True
    return part._is_view() and part._base is (base_part._base if base_part._is_view() else base_part)  # noqa: SLF001


@lru_cache(maxsize=256)
def _steps(base: Geometry, part: Geometry) -> _Steps | str | None:
    """Return where a tensor begins in a base, and its steps there; `_APART`, or None if it goes beyond."""
    sizes, strides, base_offset = base
    of_base, of_part = map(_elements, _without_common(base, part))
    is_of_base = np.zeros(max(of_base.max(), of_part.max()) + 1, dtype=bool)
    is_of_base[of_base] = True
    if not is_of_base[of_part].any():
        return _APART
    if not is_of_base[of_part].all():
        return None
    order = sorted((dim for dim, size in enumerate(sizes) if size > 1), key=strides.__getitem__, reverse=True)

    def divided(distance: int) -> tuple[int, ...]:
        counts = [0] * len(sizes)
        for dim in order:
            if strides[dim]:
                counts[dim], distance = divmod(distance, strides[dim])
        return tuple(counts)

    _, part_strides, offset = part
    return divided(offset - base_offset), tuple(map(divided, part_strides))


def _without_common(base: Geometry, part: Geometry) -> tuple[Geometry, Geometry]:
    """Return two tensors without the dimensions that both have in common, such as that of samples.

    Along these each repeats what the rest of it is, beside itself. All elements would be too many to list.
    """
    for size, stride in {*zip(*base[:2], strict=True)} & {*zip(*part[:2], strict=True)}:
        rest = _without(base, size, stride), _without(part, size, stride)
        if _are_within(rest, stride) or _are_around(rest, size * stride):
            return _without_common(*rest)
    return base, part


def _without(geometry: Geometry, size: int, stride: int) -> Geometry:
    """Return a tensor without one of its dimensions."""
    dims = [*zip(*geometry[:2], strict=True)]
    dims.remove((size, stride))
    return tuple(of_dim for of_dim, _ in dims), tuple(step for _, step in dims), geometry[2]


def _are_within(geometries: Iterable[Geometry], step: int) -> bool:
    """Return whether tensors end before a step, so that copies of them at each step do not overlap."""
    last = [
        offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        for sizes, strides, offset in geometries
    ]
    return max(last) < step


def _are_around(geometries: Iterable[Geometry], step: int) -> bool:
    """Return whether all elements of tensors are at multiples of a step, so that there is room up to it."""
    return step > 0 and not any(
        place % step for _, strides, offset in geometries for place in (*strides, offset)
    )


def _elements(geometry: Geometry) -> Any:
    """Return the places of the elements of a tensor in its memory."""
    sizes, strides, offset = geometry
    along = [np.arange(size) * stride for size, stride in zip(sizes, strides, strict=True)]
    return reduce(np.add.outer, along, np.array(offset)).reshape(-1)
