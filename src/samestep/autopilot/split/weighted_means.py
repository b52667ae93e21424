"""Combines the means of slices to the mean of the batch, on the device.

With the weight w of each rank's mean m, the divisor of its sum::

    mean = sum of w m / sum of w            gradient of a rank's m: N w / sum of w, for N ranks

A slice whose samples are all ignored has the mean 0 / 0. Its weight is 0, so its value and its gradient have
no part in those of the batch. If all ranks have the weight 0, the mean of the batch is 0 / 0, as on one rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from samestep.autopilot.split.deferred_checks import refuse
from samestep.autopilot.split.loss_reduction import Reduction, reducing_nodes
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
    weights = torch.stack([one.on(part.device) for one in (reduction.weight, *reduction.others)])
    mean, table = _WeightedMean.apply(part, weights, world)  # type: ignore[no-untyped-call]
    if reduction.others:
        refuse(_are_not_proportional(table), _NOT_PROPORTIONAL)
    if part.requires_grad and (reduction.weight.is_zero or isinstance(reduction.weight.value, Tensor)):
        totals = table[:, 0].sum()
        _exclude(part, (weights[0] == 0) & (totals != 0))
    result: Tensor = mean
    return result


class _WeightedMean(torch.autograd.Function):
    """The mean over ranks, and the weights of all ranks, (ranks, terms)."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, weights: Tensor, world: World) -> tuple[Tensor, Tensor]:
        size, rank, terms = world.place.size, world.place.rank, len(weights)
        own = weights[0]
        values = torch.view_as_real(part) if part.is_complex() else part
        flat = values.reshape(-1).to(torch.float64)
        # A slice without weight is NaN. `torch.where` would copy the number 0 from the host, and wait for it.
        weighted = (flat * own).masked_fill(own == 0, 0.0)
        table = pad(weights, (rank * terms, (size - rank - 1) * terms))
        message = torch.cat([weighted, flat, table])
        world.all_reduce(message)
        weighted, plain, table = torch.split(message, [len(flat), len(flat), size * terms])
        table = table.view(size, terms)
        total = table[:, 0].sum()
        is_empty = total == 0
        ctx.factor = (own * size / total).masked_fill(is_empty, 1.0)
        mean = torch.where(is_empty, plain / size, weighted / total)
        mean = mean.view(values.shape).to(values.dtype)
        ctx.mark_non_differentiable(table)
        return torch.view_as_complex(mean) if part.is_complex() else mean, table

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        wide = grad.to(torch.promote_types(grad.dtype, torch.float64))
        return (wide * ctx.factor).to(grad.dtype), None, None


def _are_not_proportional(table: Tensor) -> Tensor:
    """Return whether columns of `table`, (ranks, terms), are not multiples of the first one: one boolean."""
    totals = table.sum(0)
    found, expected = table * totals[0], table[:, :1] * totals
    return ~((found - expected).abs() <= _PROPORTIONAL * expected.abs()).all()


def _exclude(part: Tensor, is_ignored: Tensor) -> None:
    """Make the gradients through a reduced value zero if a slice has no samples that count.

    Its value is 0 / 0, and the gradient through a factor or divisor would be NaN.
    """

    def select(gradients: Any, _: object) -> tuple[Tensor | None, ...]:
        return tuple(
            None if one is None else torch.where(is_ignored.to(one.device), torch.zeros_like(one), one)
            for one in gradients
        )

    for node in reducing_nodes(part):
        node.register_hook(select)
