"""Combines the means of slices to the mean of the batch, on the device.

With the weight w of each rank's mean m, the divisor of its sum::

    mean = sum of w m / sum of w            gradient of a rank's m: N w / sum of w, for N ranks

A slice whose samples are all ignored has the mean 0 / 0. Its weight is 0, so its value and its gradient have
no part in those of the batch. If all ranks have the weight 0, so has the batch, and its mean is 0 / 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from samestep.autopilot.split.deferred_checks import refuse
from samestep.autopilot.split.loss_reduction import Reduction, reducing_nodes
from samestep.autopilot.split.reduction_weights import Weight
from samestep.ranks.world.protocol import World

_PROPORTIONAL = 1e-9
"""Relative difference up to which the weights of several means are proportional to each other."""
_NOT_PROPORTIONAL = (
    "a model adds losses that are means over different numbers of elements, in different proportions on each "
    "worker. Return them one by one, or keep the model's calls unsplit: "
    "samestep.batch_dim(model, dim=None)."
)


def mean_over_ranks(part: Tensor, reduction: Reduction, world: World) -> Tensor:
    """Return the mean of the whole batch, given the mean of a slice and how that was reduced.

    Nothing is read from the device. One all-reduce carries the values and the weights of all ranks.

    Raises:
        UsageError: losses are means over numbers of elements that are not proportional; see `refuse`.
    """
    with torch.no_grad():
        values = torch.view_as_real(part) if part.is_complex() else part
        flat = values.detach().reshape(-1).to(torch.float64)
        weight, is_ignored, weighted = _weighted(flat, reduction.weight)
        message = [weighted, weight[None]]
        if reduction.others:
            message.append(_table(weight, reduction.others, world))
        together = torch.cat(message)
        world.all_reduce(together)
        total = together[len(flat)]
        mean = (together[: len(flat)] / total).view(values.shape).to(values.dtype)
        mean = torch.view_as_complex(mean) if part.is_complex() else mean
        mean = mean.clone()  # no view, which a script may not write to
    if reduction.others:
        table = together[len(flat) + 1 :].view(world.place.size, -1)
        refuse(_are_not_proportional(table), _NOT_PROPORTIONAL)
    if not (part.requires_grad and torch.is_grad_enabled()):
        return mean
    factor = weight * world.place.size / total
    if is_ignored is not None:
        factor = factor.masked_fill(total == 0, 1.0)
        _exclude(part, is_ignored, total)
    factor = factor.to(torch.promote_types(values.dtype, torch.float32))
    result: Tensor = _InPlaceOf.apply(part, mean, factor)  # type: ignore[no-untyped-call]
    return result


def _weighted(flat: Tensor, weight: Weight) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return a weight, (), whether it is 0, and values times the weight, which are 0 if it is 0.

    None stands for a weight that the host knows not to be 0.
    """
    own = weight.on(flat.device)
    if isinstance(weight.value, float) and weight.value:
        return own, None, flat * weight.value
    # A slice without weight is NaN. `torch.where` would copy the number 0 from the host, and wait for it.
    is_ignored = own == 0
    return own, is_ignored, (flat * own).masked_fill_(is_ignored, 0.0)


def _table(weight: Tensor, others: Sequence[Weight], world: World) -> Tensor:
    """Return this rank's weights at its row of a table of zeros, (ranks, terms), flattened."""
    own = torch.stack([weight, *(one.on(weight.device) for one in others)])
    rank, after = world.place.rank, world.place.size - world.place.rank - 1
    return pad(own, (rank * len(own), after * len(own)))


class _InPlaceOf(torch.autograd.Function):
    """A value that replaces another one, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, value: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return value.clone()  # as above

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wide = grad.to(torch.promote_types(grad.dtype, ctx.factor.dtype))
        return (wide * ctx.factor).to(grad.dtype), None, None


def _are_not_proportional(table: Tensor) -> Tensor:
    """Return whether columns of `table`, (ranks, terms), are not multiples of the first one: one boolean."""
    totals = table.sum(0)
    found, expected = table * totals[0], table[:, :1] * totals
    return ~((found - expected).abs() <= _PROPORTIONAL * expected.abs()).all()


def _exclude(part: Tensor, is_ignored: Tensor, total: Tensor) -> None:
    """Make the gradients through a reduced value zero if a slice has no weight, and the batch has.

    The value of the slice is 0 / 0, and the gradient through a factor or divisor would be NaN.
    """
    nodes = reducing_nodes(part)
    if not nodes:
        return
    is_excluded = is_ignored & (total != 0)

    def select(gradients: Any, _: object) -> tuple[Tensor | None, ...]:
        return tuple(None if one is None else one.masked_fill(is_excluded, 0.0) for one in gradients)

    for node in nodes:
        node.register_hook(select)
