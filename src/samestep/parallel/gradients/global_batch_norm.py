"""Computes batch norm over a batch that is sharded across ranks.

Forward. Each rank has n values per channel, their mean and M2, the sum of squared deviations. All ranks
gather all three and combine them in rank order (Chan, Golub and LeVeque, 1979, for any number of groups)::

    count = sum n_r      mean = sum n_r mean_r / count      M2 = sum M2_r + n_r (mean_r - mean)^2

TopLevelBackward. With xhat = (x - mean) / std and g = d loss / d y, over the *global* batch::

    dx = weight / std * (g - sum(g) / count - xhat * sum(g xhat) / count)

The loss of rank r is N times its part of the global loss, so that the average of the gradients over the N
ranks, 1/N sum_r, is the global gradient. So g is N times the global one on every rank, both sums over all
ranks are N times the global ones, and so is dx: averaging removes this one factor. d weight = sum(g xhat)
and d bias = sum(g) are sums over this rank's shard; they are averaged with the gradients of all parameters.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Moments = tuple[Tensor, Tensor, Tensor]
"""Count (1,), mean (C,), and variance or M2 (C,), in at least single precision."""


class Ranks(Protocol):
    """The ranks that share a batch: a `World`, or those of a process group."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all ranks."""


def local_moments(batch: Tensor) -> Moments:
    """Return count, mean and M2 per channel of this rank's shard (n, C, ...); zeros for an empty one."""
    values = batch.detach()
    values = values.to(_precision(values))
    channels = values.shape[1]
    num = values.numel() // max(channels, 1)
    count = values.new_full((1,), num)
    if num == 0:
        return count, values.new_zeros(channels), values.new_zeros(channels)
    if values.device.type == "cpu":  # three times faster there than var_mean (measured)
        mean, var = torch.batch_norm_update_stats(values, None, None, 0.0)
    else:
        var, mean = torch.var_mean(values, _all_but_channels(values), correction=0)
    return count, mean, var * num


def combine(world: Ranks, moments: Moments) -> Moments:
    """Return count, mean and biased variance of the global batch; equal bits on all ranks."""
    gathered = torch.stack(world.all_gather(torch.cat(moments)))  # (ranks, 1 + 2C)
    channels = moments[1].numel()
    counts, means, squares = torch.split(gathered, [1, channels, channels], dim=1)  # (ranks, 1 | C | C)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return count, mean, (squares + counts * (means - mean) ** 2).sum(0) / count


class GlobalNorm(torch.autograd.Function):
    """Normalization with given statistics, whose backward treats them as computed from all ranks' inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        moments: Moments,
        eps: float,
        world: Ranks,
    ) -> Tensor:
        """Return the normalized batch, of the dtype of `batch`."""
        count, mean, var = moments
        ctx.save_for_backward(batch, weight, bias, count, mean, var)
        ctx.eps, ctx.world = eps, world
        return _normalize(batch, (mean, var), weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of batch, weight and bias."""
        batch, weight, bias, count, mean, var = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the same formula in differentiable operations
            d_batch, d_weight, d_bias = _differentiable(ctx.world, grad, batch, weight, ctx.eps)
        else:
            d_batch, d_weight, d_bias = _fused(ctx, grad, batch, weight, (count, mean, var))
        return (
            d_batch,
            d_weight.to(weight.dtype) if weight is not None else None,
            d_bias.to(bias.dtype) if bias is not None else None,
            None,
            None,
            None,
        )


def _fused(
    ctx: Any, grad: Tensor, batch: Tensor, weight: Tensor | None, moments: Moments
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients by torch's kernels for fixed statistics, plus the terms of the two sums."""
    count, mean, var = moments
    invstd = torch.rsqrt(var + ctx.eps)
    d_weight, d_bias = _own_sums(grad, batch, (mean, var, invstd), ctx.eps)
    if not ctx.needs_input_grad[0]:
        return None, d_weight, d_bias
    sums = torch.cat([d_bias, d_weight])
    ctx.world.all_reduce(sums)
    scale = invstd if weight is None else invstd * weight
    by_g, by_g_xhat = (-sums / count).chunk(2)
    d_batch = _normalize(batch, (mean, var), by_g_xhat * scale, by_g * scale, ctx.eps)
    return d_batch.addcmul_(grad, per_channel(scale, grad).to(grad.dtype)), d_weight, d_bias


def _own_sums(
    grad: Tensor, batch: Tensor, statistics: tuple[Tensor, Tensor, Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    """Return sum(g xhat) and sum(g) over this rank's shard, (C,) each."""
    mean, var, invstd = statistics
    if batch.numel() == 0:  # torch's kernel divides by the size, which crashes the process
        return torch.zeros_like(mean), torch.zeros_like(mean)
    # CUDA's kernel reads the saved statistics, also those of a fixed mean and variance; the CPU's does not.
    fixed = {"save_mean": mean, "save_invstd": invstd, "train": False}
    _, by_xhat, plain = torch.ops.aten.native_batch_norm_backward(
        grad, batch, torch.ones_like(mean), mean, var, **fixed, eps=eps, output_mask=[False, True, True]
    )
    return by_xhat, plain


def _differentiable(
    world: Ranks, grad: Tensor, batch: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients as functions of `grad`, `batch` and `weight` on all ranks."""
    dims = _all_but_channels(batch)
    values, g = batch.to(_precision(batch)), grad.to(_precision(grad))

    def total(tensor: Tensor) -> Tensor:
        return per_channel(_sum_over_ranks(tensor.sum(dims), world), batch)

    count = total(torch.ones_like(values))
    centered = values - total(values) / count
    invstd = torch.rsqrt(total(centered**2) / count + eps)
    xhat = centered * invstd
    scale = invstd if weight is None else invstd * per_channel(weight, batch)
    d_batch = scale * (g - total(g) / count - xhat * total(g * xhat) / count)
    return d_batch.to(batch.dtype), (g * xhat).sum(dims), g.sum(dims)


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks, on every rank; its backward is the sum over ranks as well."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: Ranks) -> Tensor:
        ctx.world = world
        total = tensor.clone()
        world.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum_over_ranks(grad, ctx.world), None


def _sum_over_ranks(tensor: Tensor, world: Ranks) -> Tensor:
    total: Tensor = _SumOverRanks.apply(tensor, world)  # type: ignore[no-untyped-call]
    return total


def _normalize(
    batch: Tensor, statistics: tuple[Tensor, Tensor], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Return ``(batch - mean) / std * weight + bias`` by torch's kernel for evaluation."""
    mean, var = statistics
    # The kernel accepts half precision batches if statistics, weight and bias are all of single precision.
    weight = weight.to(mean.dtype) if weight is not None else None
    bias = bias.to(mean.dtype) if bias is not None else None
    return functional.batch_norm(batch, mean, var, weight, bias, training=False, eps=eps)


def _precision(tensor: Tensor) -> torch.dtype:
    """Return the dtype of sums over a tensor."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _all_but_channels(batch: Tensor) -> list[int]:
    return [dim for dim in range(batch.dim()) if dim != 1]


def per_channel(values: Tensor, batch: Tensor) -> Tensor:
    """Return `values` (C,) reshaped to (1, C, 1, ...), to broadcast over the channels of `batch`."""
    return values.view(1, -1, *[1] * (batch.dim() - 2))
