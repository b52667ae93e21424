"""Describes how the calls of one signature are split, and gathers their outputs and side outputs.

Side outputs are tensors that a module assigns to its attributes in a call, such as a hidden state. They are
gathered after a call, like its outputs, and sliced before the next call, which may continue from them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from samestep.autopilot.split.call_arguments import LIST, Dims
from samestep.autopilot.split.forward_reductions import read_reduction
from samestep.autopilot.split.loss_reduction import OF_EACH, READINGS, Reading, Reduction
from samestep.autopilot.split.random_draws import DrawPlan
from samestep.autopilot.split.sharded_autograd import BatchSplit, memory_order
from samestep.autopilot.split.weighted_means import mean_over_ranks
from samestep.autopilot.state.sample_reads import Site
from samestep.autopilot.state.saved_state import SideOutput
from samestep.base.errors import UsageError
from samestep.hooks import module_parts
from samestep.hooks.raw_containers import (
    base_of,
    fields_of,
    is_mapping,
    refill,
    restore_fields,
    stored_fields,
    with_items,
)
from samestep.hooks.tensor_tree import Path, leaves, mapped
from samestep.parallel.gradients.batch_norm import raise_now
from samestep.ranks.world.protocol import World

_EQUAL = 1e-6
"""Relative difference up to which an output counts as equal on all ranks: eight units of single precision."""
_ROUNDED = 100.0
"""Absolute difference of each element up to which it does, in units of rounding: zeros may be sums.
A guess."""
_NAN, _INFINITY = 0.5, 0.25
"""The values of elements that are not finite in a digest, so that equal outputs have one: arbitrary."""
_SPREAD = 43758.5453  # large, so that the fraction of its product with a sine is like a random number
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
    flat = real.double().flatten().nan_to_num(nan=_NAN, posinf=_INFINITY, neginf=-_INFINITY)
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    weights = (places.sin() * _SPREAD).frac()
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
        reduction = read_reduction(part, self.reading)
        if reduction is None:
            raise UsageError(
                "a model computes its loss in another way than in its first call, so the weight of a "
                "slice's loss is unknown. Return scores from forward and compute the loss outside, or keep "
                "the model's calls unsplit: samestep.batch_dim(model, dim=None)."
            )
        if reduction.kind == "sum":
            return split.summed(part)
        return mean_over_ranks(part, reduction, split.world, reading=self.reading)


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
    has_views: bool = False
    """Whether an output or side output shares memory with another one, an argument or the module."""


def batch_split(world: World, dims: Dims, total: int) -> BatchSplit:
    """Return the division of a batch whose inputs have these sample dimensions."""
    return BatchSplit(world, total, of_list=LIST in dims.values())


def _is_of_unknown_elements(part: Tensor, reduction: Reduction) -> bool:
    """Return whether several means may be over other elements: a selection is visible in a graph only."""
    return part.grad_fn is None and len(reduction.values()) > 1


def gatherings_for(whole: Tensor, part: Tensor, split: BatchSplit) -> Iterator[Gathering]:
    """Yield the ways to gather parts of this shape to an output of that shape, safest first.

    A reduction comes before `ReplicatedOutput`, if it can be read from the computation: equal values of
    slices may be means of equal samples.
    """
    if whole.shape == part.shape:
        known: list[Reduction] = []
        for reading in (*READINGS, OF_EACH) if split.of_list else READINGS:
            reduction = read_reduction(part, reading)
            if (
                reduction is not None
                and reduction not in known
                and not _is_of_unknown_elements(part, reduction)
            ):
                known.append(reduction)
                if reduction.kind == "sum" or whole.is_floating_point() or whole.is_complex():
                    yield ReducedOutput(reading)
        yield ReplicatedOutput()
    if whole.dim() != part.dim():
        return
    order = tuple(memory_order(whole))
    for dim, size in enumerate(whole.shape):
        if size % split.total or part.size(dim) * split.total != size * split.local:
            continue
        further = [at for at in range(whole.dim()) if at != dim]
        if any(whole.size(at) != part.size(at) for at in further):
            continue
        expanded = tuple(at for at in further if whole.stride(at) == 0 and whole.size(at) > 1)
        yield ConcatenatedOutput(dim, order, expanded=expanded)
        if size > split.total:
            yield ConcatenatedOutput(dim, order, inner=True, expanded=expanded)


def outcome(
    module: nn.Module, outputs: Any, sides: Iterable[SideOutput]
) -> tuple[Any, dict[SideOutput, Any]]:
    """Return the outputs and the side outputs of a call as one structure.

    A list, a dict or an object among the side outputs is copied: the next assignment refills the module's.
    """
    kept = {side: getattr(module_parts.submodule(module, side[0]), side[1], None) for side in sides}
    return outputs, {side: _copied(value) for side, value in kept.items()}


def _copied(value: Any) -> Any:
    copied = mapped(value, lambda _, tensor: tensor)
    is_refilled = copied is value and (is_mapping(value) or base_of(value) is list)
    return with_items(value, {}) if is_refilled else copied


def assign_side_outputs(module: nn.Module, left: Mapping[SideOutput, Any]) -> None:
    """Assign side outputs to their attributes; a list, a dict or an object keeps its identity."""
    for (name, key), value in left.items():
        owner = module_parts.submodule(module, name)
        before = getattr(owner, key, None)
        if type(before) is type(value) and (is_mapping(before) or base_of(before) is list):
            refill(before, value)
            if fields := fields_of(value):
                restore_fields(before, fields)
        elif (
            type(before) is type(value)
            and stored_fields(before) is not None
            and not isinstance(before, Tensor)
        ):
            restore_fields(before, fields_of(value))
        else:
            setattr(owner, key, value)


def slice_side_outputs(
    module: nn.Module, gatherings: Mapping[Path, Gathering], sides: Iterable[SideOutput], split: BatchSplit
) -> None:
    """Replace the side outputs of an earlier call by this rank's slices."""

    def sliced(path: Path, tensor: Tensor) -> Tensor:
        gathering = gatherings.get(path)
        if not isinstance(gathering, ConcatenatedOutput) or gathering.inner or tensor.dim() <= gathering.dim:
            return tensor
        every, rest = divmod(tensor.size(gathering.dim), split.total)
        return tensor if rest or not every else split.sliced(tensor, gathering.dim, every=every)

    _, left = outcome(module, None, sides)
    _, own_left = mapped((None, left), sliced)
    assign_side_outputs(module, own_left)


def can_continue(
    module: nn.Module, gatherings: Mapping[Path, Gathering], sides: Iterable[SideOutput], total: int
) -> bool:
    """Return whether a call of `total` samples can continue from slices of the side outputs."""
    _, left = outcome(module, None, sides)
    return not any(
        isinstance(gathering := gatherings.get(path), ConcatenatedOutput)
        and tensor.dim() > gathering.dim
        and tensor.size(gathering.dim) % total
        for path, tensor in leaves((None, left))
    )


def gather_outcome(value: Any, gatherings: Mapping[Path, Gathering], split: BatchSplit, *, name: str) -> Any:
    """Return the outcome of the whole batch; raise `UsageError` for an unknown tensor."""
    if any(path not in gatherings for path, _ in leaves(value)):
        raise UsageError(
            f"{name} returns or keeps other tensors than in its first call of this signature, which "
            "cannot be gathered."
        )
    return mapped(value, lambda path, part: gatherings[path].gather(part, split))
