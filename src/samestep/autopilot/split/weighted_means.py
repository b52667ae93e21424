"""Combines the means of slices to the mean of the batch, on the device.

With the weight w of each rank's mean m, the divisor of its sum::

    mean = sum of w m / sum of w            gradient of a rank's m: N w / sum of w, for N ranks

A slice whose samples are all ignored has the mean 0 / 0. Its weight is 0, so its value and its gradient have
no part in those of the batch. If all ranks have the weight 0, so has the batch, and its mean is 0 / 0.

A mean may be a sum times a factor, the reciprocal of its weight. If the factor is 0, the weight is infinite,
and `_LARGEST` stands for it: the mean is that of the slices with this factor. A weight that is NaN, such as
the reciprocal of a factor 0 / 0, is left out if the factor of another slice is 0. Beside other weights it is
refused. If it is NaN on all ranks, the mean is NaN, as on one worker.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from samestep.autopilot.split.loss_reduction import Reading, Reduction, Weight, reducing_nodes
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
_UNKNOWN = (
    "the factor or divisor of a model's loss is NaN on some workers and a number on others, so the weight of "
    "a slice's loss is unknown. Return scores from forward and compute the loss outside, or keep the model's "
    "calls unsplit: samestep.batch_dim(model, dim=None)."
)


def mean_over_ranks(part: Tensor, reduction: Reduction, world: World, *, reading: Reading) -> Tensor:
    """Return the mean of the whole batch, given the mean of a slice and how that was reduced.

    The host waits for the device only if the weight can be unknown, or if there are several means. One
    all-reduce carries the values and the weights of all ranks.

    Args:
        part: the mean of this rank's slice, of any shape.
        reduction: how `part` was reduced.
        world: the ranks that have the slices.
        reading: the assumptions under which `reduction` was read.

    Raises:
        UsageError: losses are means over numbers of elements that are not proportional, or the weight of a
            slice is unknown.
    """
    with torch.no_grad():
        values = torch.view_as_real(part) if part.is_complex() else part
        flat = values.detach().reshape(-1).to(torch.float64)
        weighted = _weighted(flat, reduction.weight)
        message = [weighted.values, weighted.weight[None], weighted.is_unknown[None]]
        if reduction.further:
            message.append(_table(weighted.weight, reduction.further, world))
        together = torch.cat(message)
        world.all_reduce(together)
        total, unknown = together[len(flat)], together[len(flat) + 1]
        mean = (together[: len(flat)] / total).view(values.shape).to(values.dtype)
        mean = torch.view_as_complex(mean) if part.is_complex() else mean
    if (
        weighted.is_ignored is not None
    ):  # else each call would copy a flag that numbers of elements cannot set
        raise_now((unknown > 0) & (unknown < world.place.size) & (total.abs() < _LARGEST), _UNKNOWN)
    if reduction.further:
        table = together[len(flat) + 2 :].view(world.place.size, -1)
        raise_now(_are_not_proportional(table), _NOT_PROPORTIONAL)
    if not (part.requires_grad and torch.is_grad_enabled()):
        return mean.clone()  # no view, which a script may not write to
    factor = weighted.weight * world.place.size / total
    if weighted.is_ignored is not None:
        factor = factor.masked_fill(total == 0, 1.0)
        _exclude(part, weighted.is_ignored & (total != 0), reading)
    factor = factor.to(torch.promote_types(values.dtype, torch.float32))
    result: Tensor = _InPlaceOf.apply(part, mean, factor)  # type: ignore[no-untyped-call]
    return result


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


class _InPlaceOf(torch.autograd.Function):
    """A value that replaces another one, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, value: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return value.clone()  # no view, which a script may not write to

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wide = grad.to(torch.promote_types(grad.dtype, ctx.factor.dtype))
        return (wide * ctx.factor).to(grad.dtype), None, None


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
