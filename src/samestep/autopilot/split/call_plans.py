"""Describes how the calls of one signature are split, and gathers their outputs and side outputs.

Side outputs are tensors that a module assigns to its attributes in a call, such as a hidden state. They are
gathered after a call, like its outputs, and sliced before the next call, which may continue from them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from samestep.autopilot.split.call_arguments import LIST, CallArguments, Dims
from samestep.autopilot.split.loss_reduction import (
    OF_EACH,
    READINGS,
    Reading,
    Reduction,
    Weight,
    read_reduction,
    reducing_nodes,
)
from samestep.autopilot.split.operations import Operation
from samestep.autopilot.split.random_draws import DrawPlan
from samestep.autopilot.split.sharded_autograd import BatchSplit, in_place_of, memory_order
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
from samestep.hooks.tensor_tree import Path, leaves, mapped, text
from samestep.parallel.gradients.batch_norm import raise_now
from samestep.ranks.world.protocol import World

_PROPORTIONAL = 1e-9
"""Relative difference up to which the weights of several means are proportional to each other: weights
are computed in double precision."""
_LARGEST = 1e100
"""The weight that stands for an infinite one; a float64 can hold its square."""
_NOT_PROPORTIONAL = (
    "a model adds losses that are means over different numbers of elements, in different proportions on each "
    "worker. Return them one by one, or keep the model's calls unsplit: "
    "samestep.batch_dim(model, dim=None)."
)
_NEGLIGIBLE = 1e-6
"""The part of the divisor of a mean that is no weight, such as the 1e-8 in `mask.sum() + 1e-8`: a guess."""
_UNKNOWN = (
    "the factor or divisor of a model's loss is NaN on some workers and a number on others, or divides a sum "
    "of 0 on some only, so the weight of a slice's loss is unknown. Return scores from forward and compute "
    "the loss outside, or keep the model's calls unsplit: samestep.batch_dim(model, dim=None)."
)


def mean_over_ranks(
    part: Tensor, reduction: Reduction, world: World, *, reading: Reading, is_compared: bool = False
) -> Tensor:
    """Return the mean of the whole batch, given the mean of a slice and how that was reduced.

    With the weight w of each rank's mean m, the divisor of its sum::

        mean = sum of w m / sum of w            gradient of a rank's m: w / sum of w

    A slice whose samples are all ignored has the mean 0 / 0. Its weight is 0, so its value and its gradient
    have no part in those of the batch. If all ranks have the weight 0, so has the batch, and its mean is
    0 / 0.

    A mean may be a sum times a factor, the reciprocal of its weight. If the factor is 0, the weight is
    infinite, and `_LARGEST` stands for it: the mean is that of the slices with this factor. A weight that is
    NaN, such as the reciprocal of a factor 0 / 0, is left out if the factor of another slice is 0. Beside
    other weights it is refused. If it is NaN on all ranks, the mean is NaN, as on one worker.

    A slice whose samples are all left out by a mask has the sum 0, and its divisor may be kept from being 0,
    as by `mask.sum().clamp(min=1)`. That is no weight: such a mean is refused beside others, unless its
    divisor hardly counts.

    The host waits for the device only if the weight can be unknown, or if there are several means. One
    all-reduce carries the values and the weights of all ranks.

    Args:
        part: the mean of this rank's slice, of any shape.
        reduction: how `part` was reduced.
        world: the ranks that have the slices.
        reading: the assumptions under which `reduction` was read.
        is_compared: whether the result is compared with that of one worker, and so no sum of 0 is refused.

    Raises:
        UsageError: losses are means over numbers of elements that are not proportional, or the weight of a
            slice is unknown.
    """
    with torch.no_grad():
        values = torch.view_as_real(part) if part.is_complex() else part
        flat = values.detach().reshape(-1).to(torch.float64)
        weighted = _weighted(flat, reduction.weight)
        of_nothing = weighted.weight.abs() * (flat == 0).all()
        message = [weighted.values, weighted.weight[None], weighted.is_unknown[None], of_nothing[None]]
        if reduction.further:
            message.append(_table(weighted.weight, reduction.further, world))
        together = torch.cat(message)
        world.all_reduce(together)
        total, unknown, of_nothing = together[len(flat) : len(flat) + 3]
        mean = (together[: len(flat)] / total).view(values.shape).to(values.dtype)
        mean = torch.view_as_complex(mean) if part.is_complex() else mean
    if (
        weighted.is_ignored is not None
    ):  # else each call would copy a flag that numbers of elements cannot set
        is_refused = (unknown > 0) & (unknown < world.place.size) & (total.abs() < _LARGEST)
        if reduction.source == "divided" and not is_compared:
            is_refused |= (of_nothing > _NEGLIGIBLE * total.abs()) & (mean != 0).any()
        raise_now(is_refused, _UNKNOWN)
    if reduction.further:
        table = together[len(flat) + 3 :].view(world.place.size, -1)
        raise_now(_are_not_proportional(table), _NOT_PROPORTIONAL)
    if not (part.requires_grad and torch.is_grad_enabled()):
        return mean.clone()  # no view, which a script may not write to
    factor = weighted.weight / total
    if weighted.is_ignored is not None:
        factor = factor.masked_fill(total == 0, 1.0)
        _exclude(part, weighted.is_ignored & (total != 0), reading)
    factor = factor.to(torch.promote_types(values.dtype, torch.float32))
    return in_place_of(part, mean, factor)


@dataclass(frozen=True, slots=True)
class _Weighted:
    """The part of a rank's slice in the mean."""

    values: Tensor  # the slice's means times the weight, (values,)
    weight: Tensor  # the divisor of the sums, (); 0 if it is unknown
    is_unknown: Tensor  # 1.0 if it is, else 0.0, ()
    is_ignored: Tensor | None  # whether `weight` is 0, (); None if the host knows that it is not


def _weighted(flat: Tensor, weight: Weight) -> _Weighted:
    if isinstance(weight.value, float) and weight.value and math.isfinite(weight.value):
        number = weight.on(flat.device)
        return _Weighted(flat * weight.value, number, torch.zeros_like(number), None)
    divisor = weight.on(flat.device)
    finite = _finite(divisor)
    # A slice without weight is NaN. `torch.where` would copy the number 0 from the host, and wait for it.
    is_ignored = finite == 0
    values = (flat * finite).masked_fill_(is_ignored, 0.0)
    return _Weighted(values, finite, divisor.isnan().to(finite.dtype), is_ignored)


def _finite(weight: Tensor) -> Tensor:
    """Return a weight, with a large number instead of an infinite one, and 0 instead of an unknown one.

    An infinite weight has no sign: those of 1 / 0 and 1 / -0 must not cancel.
    """
    return weight.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=_LARGEST)


def _table(weight: Tensor, further: Sequence[Weight], world: World) -> Tensor:
    """Return this rank's weights at its row of a table of zeros, (ranks, terms), flattened."""
    weights = torch.stack([weight, *(_finite(term.on(weight.device)) for term in further)])
    rank, after = world.place.rank, world.place.size - world.place.rank - 1
    return pad(weights, (rank * len(weights), after * len(weights)))


def _are_not_proportional(table: Tensor) -> Tensor:
    """Return whether columns of `table`, (ranks, terms), are not multiples of the first one: one boolean."""
    totals = table.sum(0)
    products, expected = table * totals[0], table[:, :1] * totals
    return ~((products - expected).abs() <= _PROPORTIONAL * expected.abs()).all()


def _exclude(part: Tensor, is_excluded: Tensor, reading: Reading) -> None:
    """Make the gradients through a reduced value zero if a slice has no weight, and the batch has.

    The value of the slice is 0 / 0, and the gradient through a factor or divisor would be NaN.
    """

    def select(gradients: Any, _: object) -> tuple[Tensor | None, ...]:
        return tuple(
            None if gradient is None else gradient.masked_fill(is_excluded, 0.0) for gradient in gradients
        )

    for node in reducing_nodes(part, reading):
        node.register_hook(select)


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


_OTHER_ROWS = (
    "a model returns rows whose number is no multiple of the samples, unlike in its first call. Keep its "
    "calls unsplit: samestep.batch_dim(model, dim=None)."
)


@dataclass(frozen=True, slots=True)
class ReplicatedOutput:
    """An output that does not depend on the samples, and is equal on all ranks."""

    def gather(self, part: Tensor, split: BatchSplit, *, is_compared: bool = False) -> Tensor:  # noqa: ARG002
        """Return the output of this rank.

        An output that is the same for all samples of one batch may differ in another, for instance where
        dropout has removed everything that it depends on.

        Raises:
            UsageError: it differs between the ranks.
        """
        digest, size = digest_of(part)
        message = torch.stack([digest, -digest, size])
        split.world.all_reduce(message, op="max")
        largest, negative_least, size = message.unbind()
        tolerated = _EQUAL * size + _rounding(part)
        raise_now(largest + negative_least > tolerated, _DEPENDS)
        return split.replicated(part)


def digest_of(value: Tensor) -> tuple[Tensor, Tensor]:
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

    def gather(self, part: Tensor, split: BatchSplit, *, is_compared: bool = False) -> Tensor:  # noqa: ARG002
        """Return the gathered rows of all samples.

        Raises:
            UsageError: the slice has another number of rows than a multiple of its samples.
        """
        sizes = [part.size(dim) if dim in self.expanded else -1 for dim in range(part.dim())]
        for dim in self.expanded:
            part = part.narrow(dim, 0, 1)
        whole = self._gather(part, split)
        return whole.expand(sizes) if self.expanded else whole

    def _gather(self, part: Tensor, split: BatchSplit) -> Tensor:
        every, rest = divmod(part.size(self.dim), split.local)
        if rest:
            raise UsageError(_OTHER_ROWS)
        if not self.inner:
            return split.gathered(part, self.dim, every=every, order=self.order)
        rows: Tensor = torch.unflatten(part, self.dim, (every, split.local))
        return split.gathered(rows, self.dim + 1).flatten(self.dim, self.dim + 1)


@dataclass(frozen=True, slots=True)
class ReducedOutput:
    """An output that is a sum or a mean over the samples, with a weight read from its computation."""

    reading: Reading

    def gather(self, part: Tensor, split: BatchSplit, *, is_compared: bool = False) -> Tensor:
        """Return the sum or the mean over all samples; a check has it `is_compared` with the unsplit one.

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
        return mean_over_ranks(part, reduction, split.world, reading=self.reading, is_compared=is_compared)


Gathering: TypeAlias = ReplicatedOutput | ConcatenatedOutput | ReducedOutput


def kind_of(gathering: Gathering) -> Gathering:
    """Return a way to gather outputs, without the fields that depend on a batch's layout in memory."""
    return (
        replace(gathering, order=(), expanded=()) if isinstance(gathering, ConcatenatedOutput) else gathering
    )


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
    rewrites: bool = False
    """Whether a call changes tensors of the module in place, beside those of batch norm."""
    reads_late: bool = False
    """Whether the backward may read what the script changes after the call."""
    operations: Set[Operation] | None = None
    """The operations of this rank's slices in the checks; None if they are those of compiled code."""
    watches_operations: bool = False
    """Whether forward may take a branch that no check has taken: on a number of a tensor that it holds, or in
    this call, as a number or the module itself is as in no check."""

    def way(self) -> tuple[Any, ...]:
        """Return what plans have in common that split calls in the same way."""
        gatherings = {path: kind_of(gathering) for path, gathering in self.gatherings.items()}
        draws = None if self.draws is None else self.draws.kinds()
        flags = self.watches_reductions, self.has_views, self.rewrites
        return dict(self.dims), gatherings, set(self.sides), draws, flags


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


def place_of(path: Path) -> str:
    """Return where a tensor of `outcome` is: in the outputs, or in an attribute of a module."""
    if path[0] == 0:
        return f"its output{text(path[1:])}"
    side: Any = path[1]
    return f"its attribute {'.'.join(filter(None, side))}{text(path[2:])}"


def with_samples(
    module: nn.Module, part: CallArguments, dims: Dims, sides: Iterable[SideOutput]
) -> Iterator[Tensor]:
    """Yield the tensors before a call that hold samples, or may: the split arguments and the side outputs."""
    yield from part.samples(dims)
    yield from (tensor for _, tensor in leaves(outcome(module, None, sides)))


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
        dim, every = _rows_of_state(tensor, gatherings.get(path), split.total)
        return split.sliced(tensor, dim, every=every) if every else tensor

    _replace_side_outputs(module, sides, sliced)


def slice_unknown_state(
    module: nn.Module, sides: Iterable[SideOutput], split: BatchSplit
) -> dict[Path, ConcatenatedOutput]:
    """Replace the side outputs that an earlier call seems to have left for each sample by this rank's slices.

    No call has been split yet, so the dimension of the samples is the first that has as many rows.

    Returns:
        The kinds of gathering by which a plan slices this state in the same way.
    """
    ways: dict[Path, ConcatenatedOutput] = {}

    def sliced(path: Path, tensor: Tensor) -> Tensor:
        dim = next((dim for dim, size in enumerate(tensor.shape) if size == split.total), None)
        if dim is None:
            return tensor
        ways[path] = ConcatenatedOutput(dim, ())
        return split.sliced(tensor, dim)

    _replace_side_outputs(module, sides, sliced)
    return ways


def _replace_side_outputs(
    module: nn.Module, sides: Iterable[SideOutput], sliced: Callable[[Path, Tensor], Tensor]
) -> None:
    _, left = outcome(module, None, sides)
    _, own_left = mapped((None, left), sliced)
    assign_side_outputs(module, own_left)


def _rows_of_state(tensor: Tensor, gathering: Gathering | None, total: int) -> tuple[int, int]:
    """Return the dimension in which a side output is sliced, and its rows for each sample; 0 for none."""
    if not isinstance(gathering, ConcatenatedOutput) or gathering.inner or tensor.dim() <= gathering.dim:
        return 0, 0
    every, rest = divmod(tensor.size(gathering.dim), total)
    return gathering.dim, 0 if rest else every


def continues(module: nn.Module, plan: SplitPlan, total: int) -> bool:
    """Return whether a call of `total` samples gets slices of what the module holds: of its side outputs.

    An equivalence check has sliced what was left before it at most, which may be nothing, or zeros.
    """
    _, left = outcome(module, None, plan.sides)
    return any(
        _rows_of_state(tensor, plan.gatherings.get(path), total)[1] for path, tensor in leaves((None, left))
    )


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
    # Helpers slice what a module keeps before the next call.
    kept = {id(part) for path, part in leaves(value) if path[0] != 0}
    return mapped(
        value, lambda path, part: gatherings[path].gather(part, split if id(part) in kept else split.for_main)
    )
