"""Describes how the calls of one signature are split: the sample dimensions, and how to gather outputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samestep.autopilot.split.draw_plans import DrawPlan
from samestep.autopilot.split.forward_reductions import read_reduction
from samestep.autopilot.split.loss_reduction import OF_EACH, READINGS, Reading, Reduction
from samestep.autopilot.split.sample_lists import LIST, Dims, is_split, lists_in, lists_of_alike, selected
from samestep.autopilot.split.sharded_autograd import BatchSplit, memory_order
from samestep.autopilot.split.weighted_means import mean_over_ranks
from samestep.autopilot.state.sample_reads import Site
from samestep.autopilot.state.saved_state import SideOutput
from samestep.base.errors import UsageError
from samestep.hooks.tensor_tree import Path, leaves, mapped
from samestep.parallel.gradients.batch_norm import raise_now
from samestep.ranks.world.protocol import World

_Tensors: TypeAlias = Sequence[tuple[Path, Tensor]]
_EQUAL = 1e-6
"""Relative difference up to which an output counts as equal on all ranks."""
_ROUNDED = 100.0
"""Absolute difference of each element up to which it does, in units of rounding: zeros may be sums."""
_DEPENDS = (
    "an output of a model did not depend on its samples in its first call, and does now. Compute it outside "
    "of forward, or keep the model's calls unsplit: samestep.batch_dim(model, dim=None)."
)


@dataclass(frozen=True, slots=True)
class ReplicatedOutput:
    """An output that does not depend on the samples, and is equal on all ranks."""

    def gather(self, part: Tensor, split: BatchSplit) -> Tensor:
        """Return the output of this rank.

        An output that is the same for all samples of one batch may differ in another, for instance where
        dropout has removed everything that it depends on.

        Raises:
            UsageError: it differs between the ranks.
        """
        digest, size = _digest(part)
        message = torch.stack([digest, -digest, size])
        split.world.all_reduce(message, op="max")
        largest, negative_least, size = message.unbind()
        tolerated = _EQUAL * size + _rounding(part)
        raise_now(largest + negative_least > tolerated, _DEPENDS)
        return part


def _digest(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum of all elements with weights like random ones, and absolute sum, each of shape ()."""
    real = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    flat = real.double().flatten().nan_to_num(nan=0.5, posinf=0.25, neginf=-0.25)
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    weights = (places.sin() * 43758.5453).frac()
    return (flat * weights).sum(), flat.abs().sum()


def _rounding(value: Tensor) -> float:
    """Return the rounding of an output of zeros, which may be sums."""
    is_exact = not (value.is_floating_point() or value.is_complex())
    return 0.0 if is_exact else _ROUNDED * torch.finfo(value.dtype).eps * value.numel()


@dataclass(frozen=True, slots=True)
class ConcatenatedOutput:
    """An output with one or several rows for each sample.

    Args:
        dim: the dimension of the rows.
        order: the dimensions of the output, outermost in memory first, as on one worker.
        inner: whether samples vary faster than rows, as with time-first sequences.
        expanded: the expanded dimensions, which have stride 0.
    """

    dim: int
    order: tuple[int, ...]
    inner: bool = False
    expanded: tuple[int, ...] = ()

    def gather(self, part: Tensor, split: BatchSplit) -> Tensor:
        """Return the gathered rows of all samples."""
        sizes = [part.size(dim) if dim in self.expanded else -1 for dim in range(part.dim())]
        for dim in self.expanded:
            part = part.narrow(dim, 0, 1)
        whole = self._gather(part, split)
        return whole.expand(sizes) if self.expanded else whole

    def _gather(self, part: Tensor, split: BatchSplit) -> Tensor:
        every = part.size(self.dim) // split.local
        if not self.inner:
            return split.gathered(part, self.dim, every=every, order=self.order)
        rows: Tensor = torch.unflatten(part, self.dim, (every, split.local))
        return split.gathered(rows, self.dim + 1).flatten(self.dim, self.dim + 1)


@dataclass(frozen=True, slots=True)
class ReducedOutput:
    """An output that is a sum or a mean over the samples, with a weight read from its computation."""

    reading: Reading

    def gather(self, part: Tensor, split: BatchSplit) -> Tensor:
        """Return the sum or the mean over all samples.

        Raises:
            UsageError: it is not computed in the same way as in the equivalence check.
        """
        found = read_reduction(part, self.reading)
        if found is None:
            raise UsageError(
                "a model computes its loss in another way than in its first call, so the weight of a "
                "slice's loss is unknown. Return scores from forward and compute the loss outside, or keep "
                "the model's calls unsplit: samestep.batch_dim(model, dim=None)."
            )
        if found.kind == "sum":
            return split.summed(part)
        return mean_over_ranks(part, found, split.world, reading=self.reading)


Gathering: TypeAlias = ReplicatedOutput | ConcatenatedOutput | ReducedOutput


@dataclass(frozen=True, eq=False, slots=True)
class SplitPlan:
    """The way to split the calls of one signature; each is equal to itself only."""

    dims: Dims
    gatherings: Mapping[Path, Gathering]
    """The way to gather each output; see `sides.outcome`."""
    sides: tuple[SideOutput, ...]
    """The attributes to which the module assigns tensors."""
    draws: DrawPlan | None
    """The random numbers that the module draws; None for none."""
    watches_reductions: bool = False
    """Whether an output is reduced over samples and has no autograd graph to read the reduction from."""
    reads: Mapping[Site, Any] = field(default_factory=dict)
    """The values that forward reads from its samples, which must be those of the equivalence check."""


def batch_split(world: World, dims: Dims, total: int) -> BatchSplit:
    """Return the division of a batch whose inputs have these sample dimensions."""
    return BatchSplit(world, total, of_list=LIST in dims.values())


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
        found = leaves(self.both)
        return [(path, tensor) for path, tensor in found if tensor.dim() and tensor.layout == torch.strided]

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

    def copied(self) -> "CallArguments":
        """Return the arguments with copies of all tensors."""
        args, kwargs = mapped(self.both, lambda _, tensor: tensor.detach().clone())
        return CallArguments(args, kwargs)

    def same(self, other: "CallArguments") -> bool:
        """Return whether the tensors of both hold the same numbers."""
        mine, theirs = self.tensors(), other.tensors()
        if len(mine) != len(theirs) or any(
            one.shape != two.shape for (_, one), (_, two) in zip(mine, theirs, strict=True)
        ):
            return False
        pairs = zip(mine, theirs, strict=True)
        return all(bool(((one == two) | (one != one)).all()) for (_, one), (_, two) in pairs)  # noqa: PLR0124 - NaN

    def form(self) -> tuple[Any, ...]:
        """Return the tensors' part of the call signature: places, dimensions and dtypes, but no sizes."""
        return tuple((path, tensor.dim(), tensor.dtype) for path, tensor in self.tensors())

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

        def own(path: Path, tensor: Tensor) -> Tensor:
            if path in dims:
                return split.sliced(tensor, dims[path])
            return tensor if is_split(path, dims) else split.shared(tensor)

        places = range(split.start, split.start + split.local)
        args, kwargs = mapped(selected(self.both, dims, places), own)
        return CallArguments(args, kwargs)


def candidates(given: CallArguments, size: int) -> Iterator[Dims]:
    """Yield the ways in which the inputs may be split for `size` ranks, likeliest first.

    The sample dimension may be the first one of any tensor, or the second: sequences may be time-first, and
    hidden states have a dimension of layers first. Ways that split more inputs come first: a model may match
    an unsplit input with the samples by position. The parts of a list may be the samples; the hundreds of
    ways to split one image or graph of a list are left out.
    """
    tensors, lists = given.tensors(), lists_of_alike(given.both)
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
        alike = {path: LIST for path, parts in lists.items() if len(parts) == total}
        inside = [tensor for path in alike for part in lists[path] for _, tensor in part]
        if total < size or any(tensor.requires_grad for tensor in inside):
            continue
        others = [(path, tensor) for path, tensor in tensors if not is_split(path, alike)]
        for least in (1, 2):
            yield {**_dims_of_size(others, total, least), **alike}
        yield alike


def _dims_of_size(tensors: _Tensors, total: int, least: int) -> Dims:
    found = {path: _sample_dim(tensor, total, least) for path, tensor in tensors}
    return {path: dim for path, dim in found.items() if dim is not None}


def _is_of_some(parts: Sequence[_Tensors], dims: Dims) -> bool:
    """Return whether a way splits some parts of a list and not the others: these parts are samples."""
    split = [any(path in dims for path, _ in part) for part in parts]
    return any(split) and not all(split)


def _sample_dim(tensor: Tensor, total: int, least: int) -> int | None:
    """Return the dimension of size `total`: the first, or the second of more than `least`; else None."""
    if tensor.size(0) == total:
        return 0
    return 1 if tensor.dim() > least and tensor.size(1) == total else None


def _is_of_unknown_elements(part: Tensor, found: Reduction) -> bool:
    """Return whether several means may be over other elements: a selection is visible in a graph only."""
    return part.grad_fn is None and len(found.values()) > 1


def gatherings_for(whole: Tensor, part: Tensor, split: BatchSplit) -> Iterator[Gathering]:
    """Yield the ways to gather parts of this shape to an output of that shape, safest first.

    A reduction comes before `ReplicatedOutput`, if it can be read from the computation: equal values of
    slices may be means of equal samples.
    """
    if whole.shape == part.shape:
        known: list[Reduction] = []
        for reading in (*READINGS, OF_EACH) if split.of_list else READINGS:
            found = read_reduction(part, reading)
            if found is not None and found not in known and not _is_of_unknown_elements(part, found):
                known.append(found)
                if found.kind == "sum" or whole.is_floating_point() or whole.is_complex():
                    yield ReducedOutput(reading)
        yield ReplicatedOutput()
    if whole.dim() != part.dim():
        return
    order = tuple(memory_order(whole))
    for dim, size in enumerate(whole.shape):
        if size % split.total or part.size(dim) * split.total != size * split.local:
            continue
        others = [at for at in range(whole.dim()) if at != dim]
        if any(whole.size(at) != part.size(at) for at in others):
            continue
        expanded = tuple(at for at in others if whole.stride(at) == 0 and whole.size(at) > 1)
        yield ConcatenatedOutput(dim, order, expanded=expanded)
        if size > split.total:
            yield ConcatenatedOutput(dim, order, inner=True, expanded=expanded)
