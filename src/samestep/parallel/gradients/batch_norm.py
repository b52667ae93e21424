"""Redirects the forward of batch norms, to compute statistics over each rank's shard or the global batch.

``local`` statistics are those of a rank's shard: fast, and another training than the serial one. ``global``
statistics are those of the global batch, in forward and backward: they give the serial result, for two small
all-reduces per layer. The modules stay the same objects. Calls of instance norms are redirected too: they are
local by definition, but may have running statistics.

Running statistics. With ``local`` batch norm, and with instance norm always, those of a rank follow its own
samples. They are moving averages, and linear. So the average of the ranks' running statistics is the running
average of the ranks' averaged batch statistics, and averaging once per synchronization is enough. The batch
statistics of instance norm are means over samples, so a rank's weight in the average is its samples.

Global forward. Each rank has n values per channel, their mean and M2, the sum of squared deviations. All
ranks gather all three and combine them in rank order (Chan, Golub and LeVeque, 1979)::

    count = sum n_r      mean = sum n_r mean_r / count      M2 = sum M2_r + n_r (mean_r - mean)^2

Global backward. With xhat = (x - mean) / std and g = d loss / d y, over the *global* batch::

    dx = weight / std * (g - sum(g) / count - xhat * sum(g xhat) / count)

The loss of rank r is N times its part of the global loss, so that the average of the gradients over the N
ranks, 1/N sum_r, is the global gradient. So g is N times the global one on every rank, both sums over all
ranks are N times the global ones, and so is dx: averaging removes this one factor. d weight = sum(g xhat)
and d bias = sum(g) are sums over this rank's shard; they are averaged with the gradients of all parameters.
All of this is linear in g: where gradients are summed, and the loss of a rank is its part, the factor is 1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional

from samestep.base.errors import UsageError
from samestep.hooks.module_parts import Forward, Undo, original_forward, own_forward, redirect
from samestep.parallel.gradients.bucket import Kind, copy_all, kind_of
from samestep.ranks.world.protocol import World

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the only name of what they share
InstanceNorm = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001
Norm = nn.modules.batchnorm._NormBase  # noqa: SLF001 - of both


class TrackedNorm:
    """A norm with running statistics, and its forwards and their samples since the last synchronization."""

    def __init__(self, module: Norm) -> None:
        self._module = ref(module)  # weak: it may be the model itself
        self._counts_samples = isinstance(module, InstanceNorm)
        self.forwards = 0
        self.samples = 0

    @property
    def weight(self) -> int:
        """Weight of this rank's statistics: batch norm has one of a shard, instance norm one of a sample."""
        return self.samples if self._counts_samples else int(self.forwards > 0)

    @property
    def module(self) -> Norm:
        """The norm, which exists as long as its model is synchronized."""
        module = self._module()
        assert module is not None
        return module

    def buffers(self) -> list[Tensor]:
        """Return the statistics, read each time because ``model.to`` replaces buffers.

        They are returned as `data`, so that changing them does not invalidate a graph that is kept for a
        second backward.
        """
        buffers = self.module._buffers  # noqa: SLF001 - a module's attributes are slow, and this is each step
        mean, var = buffers["running_mean"], buffers["running_var"]
        assert mean is not None
        assert var is not None
        return [mean.data, var.data]

    def counter(self) -> Tensor | None:
        """Return the counter of training steps; None if the module has none, as instance norm."""
        module = self.module
        count = module.num_batches_tracked if isinstance(module, BatchNorm) else None
        return None if count is None else count.data


class RunningStatistics:
    """The running statistics of norms of one kind, as a payload of the gradients' message.

    ::

        slot   | mean 0 | var 0 | mean 1 | ... | weight 0 | weight 1 | ... | steps 0 | steps 1 | ... |

    A rank without samples contributes zeros, and the weight 0: the result is the average over the others. If
    no rank has samples, as in evaluation mode, the statistics keep their bits. The steps, the number of
    forwards since the last synchronization, are averaged in the same way and rounded, so that all ranks
    count the same.
    """

    def __init__(self, tracked: Sequence[TrackedNorm]) -> None:
        self._tracked = tracked
        buffers = self._buffers()
        self.kind: Kind = kind_of(buffers[0])
        self.slot: Tensor | None = None
        self._sizes = [buffer.numel() for buffer in buffers]
        self.numel = sum(self._sizes) + 2 * len(tracked)
        owners = torch.arange(len(tracked), device="cpu").repeat_interleave(2)  # (buffers,)
        self._owner = owners.repeat_interleave(torch.tensor(self._sizes, device="cpu")).to(
            buffers[0].device
        )  # (values,)
        self._loaded: tuple[list[int], list[int]] = [], []
        self._packed: list[Tensor] = []

    def assign_slot(self, slot: Tensor) -> None:
        """See `Payload.assign_slot`."""
        self.slot = slot
        self._values, self._tail = torch.split(slot, [sum(self._sizes), 2 * len(self._tracked)])
        self._slots = list(torch.split(self._values, self._sizes))

    def pack(self) -> None:
        """See `Payload.pack`."""
        self._packed = buffers = self._buffers()
        if kind_of(buffers[0]) != self.kind:
            raise UsageError(
                f"running statistics were {self.kind[0]} when replicate() was called and are "
                f"{buffers[0].dtype} now. Change dtype and device of a model before replicate()."
            )
        weights = [tracked.weight for tracked in self._tracked]
        steps = [tracked.forwards for tracked in self._tracked]
        if (weights, steps) != self._loaded:  # otherwise the device has them; copying them would make it wait
            dtype, device = self.kind
            self._loaded = weights, steps
            self._mine = torch.tensor([*weights, *steps], dtype=dtype, device="cpu").to(device)
        copy_all([*self._slots, self._tail], [*buffers, self._mine])
        if set(weights) != {1}:
            weight = self._tail[self._owner]
            self._values.mul_(weight).masked_fill_(weight == 0, 0)  # never 0 * NaN

    def unpack(self) -> None:
        """See `Payload.unpack`."""
        is_plain = set(self._loaded[0]) == {1}
        if self.kind[1].type == "cpu" and is_plain and torch.equal(self._tail, self._mine):
            copy_all(self._packed, self._slots)  # all ranks had the same number of forwards with samples
            self._reset()
            return
        weights, steps = self._tail.chunk(2)  # (tracked,) each
        weight = weights[self._owner]  # (values,)
        self._values.div_(weight)
        buffers = self._packed
        if not all(tracked.forwards for tracked in self._tracked):
            # Selected on the device, because reading the weights waits for it.
            now = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._values.copy_(torch.where(weight > 0, self._values, now))
        copy_all(buffers, self._slots)
        # Only batch norms have counters, and weights of 0 or 1. NaN where no rank had samples.
        self._count(torch.nan_to_num(steps / weights).round())
        self._reset()

    def _reset(self) -> None:
        self._packed = []
        for tracked in self._tracked:
            tracked.forwards = tracked.samples = 0

    def _count(self, steps: Tensor) -> None:
        """Set the counters to `steps`, (tracked,), since the last synchronization."""
        missing = (steps - self._mine.chunk(2)[1]).long().unbind()
        counters = [tracked.counter() for tracked in self._tracked]
        pairs = [
            (counter, more) for counter, more in zip(counters, missing, strict=True) if counter is not None
        ]
        if pairs:
            torch._foreach_add_([counter for counter, _ in pairs], [more for _, more in pairs])

    def _buffers(self) -> list[Tensor]:
        return [buffer for tracked in self._tracked for buffer in tracked.buffers()]


def by_kind(tracked: Iterable[TrackedNorm]) -> list[RunningStatistics]:
    """Return `tracked` in groups of one dtype and device."""
    groups: dict[Kind, list[TrackedNorm]] = {}
    for tracker in tracked:
        groups.setdefault(kind_of(tracker.buffers()[0]), []).append(tracker)
    return [RunningStatistics(group) for group in groups.values()]


def average_statistics(world: World, statistics: Sequence[RunningStatistics]) -> None:
    """Average running statistics in separate messages."""
    for payload in statistics:
        dtype, device = payload.kind
        slot, before = torch.zeros(payload.numel, dtype=dtype, device=device), payload.slot
        payload.assign_slot(slot)
        payload.pack()
        world.average_later(slot).wait()
        payload.unpack()
        if before is not None:  # in its bucket
            payload.assign_slot(before)


_Moments = tuple[Tensor, Tensor, Tensor]
"""Count (1,), mean (C,), and variance or M2 (C,), in at least single precision."""


class Ranks(Protocol):
    """The ranks that share a batch: a `World`, or those of a process group."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all ranks."""


def _local_moments(batch: Tensor) -> _Moments:
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


def _combine(world: Ranks, moments: _Moments) -> _Moments:
    """Return count, mean and biased variance of the global batch; equal bits on all ranks."""
    gathered = torch.stack(world.all_gather(torch.cat(moments)))  # (ranks, 1 + 2C)
    channels = moments[1].numel()
    counts, means, squares = torch.split(gathered, [1, channels, channels], dim=1)  # (ranks, 1 | C | C)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return count, mean, (squares + counts * (means - mean) ** 2).sum(0) / count


class _GlobalNorm(torch.autograd.Function):
    """Normalization with given statistics, whose backward treats them as computed from all ranks' inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        moments: _Moments,
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
    ctx: Any, grad: Tensor, batch: Tensor, weight: Tensor | None, moments: _Moments
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
    # As torch does, in single precision: the terms may exceed float16 where their sum does not.
    wide, wide_grad = batch.to(_precision(batch)), grad.to(_precision(grad))
    d_batch = _normalize(wide, (mean, var), by_g_xhat * scale, by_g * scale, ctx.eps)
    d_batch = d_batch.addcmul_(wide_grad, _per_channel(scale, wide_grad).to(wide_grad.dtype))
    return d_batch.to(batch.dtype), d_weight, d_bias


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
        return _per_channel(_sum_over_ranks(tensor.sum(dims), world), batch)

    count = total(torch.ones_like(values))
    centered = values - total(values) / count
    invstd = torch.rsqrt(total(centered**2) / count + eps)
    xhat = centered * invstd
    scale = invstd if weight is None else invstd * _per_channel(weight, batch)
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


def _per_channel(values: Tensor, batch: Tensor) -> Tensor:
    """Return `values` (C,) reshaped to (1, C, 1, ...), to broadcast over the channels of `batch`."""
    return values.view(1, -1, *[1] * (batch.dim() - 2))


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of `model` by name, without SyncBatchNorm, which is global already."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    }


def instance_norms(model: nn.Module) -> dict[str, InstanceNorm]:
    """Return the instance norms of `model` by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, InstanceNorm)}


def check_torch_forward(modules: Mapping[str, BatchNorm]) -> None:
    """Raise UsageError if a module has another forward than torch's, which must not be replaced."""
    for name, module in modules.items():
        if not _has_torch_forward(module):
            raise UsageError(
                f"{name or 'the model'} ({type(module).__name__}) has a user-defined forward, which cannot "
                "run over the global batch. Use torch's BatchNorm, or batch_norm='local'."
            )


def track(modules: Mapping[str, Norm]) -> dict[str, TrackedNorm]:
    """Return the norms that have running statistics."""
    return {name: TrackedNorm(module) for name, module in modules.items() if module.running_mean is not None}


def use_local_statistics(modules: Iterable[Norm], tracked: Iterable[TrackedNorm]) -> list[Undo]:
    """Make each rank normalize its shard with local statistics, an empty shard too."""
    trackers = {tracker.module: tracker for tracker in tracked}
    undo = []
    for module in modules:
        user_forward = None if _has_torch_forward(module) else original_forward(module)
        undo.append(
            redirect(module, partial(_local_forward, user_forward=user_forward, tracked=trackers.get(module)))
        )
    return undo


def use_global_statistics(modules: Iterable[BatchNorm], world: World) -> list[Undo]:
    """Make all ranks normalize with the statistics of the global batch.

    These forwards are excluded from `torch.compile`: a compiled graph cannot contain their all-gather.
    """
    return [redirect(module, partial(global_forward, world=world), compiled=False) for module in modules]


def _local_forward(
    module: Norm,
    batch: Tensor,
    *args: Any,
    user_forward: Forward | None,
    tracked: TrackedNorm | None,
    **kwargs: Any,
) -> Tensor:
    if batch.numel() == 0 and not _takes_empty(module):
        if user_forward is not None:
            raise UsageError(
                f"{type(module).__name__} has a user-defined forward, which cannot run on this rank's empty "
                f"shard {list(batch.shape)}. Call contribute_nothing() on this rank instead of the model."
            )
        return _normalize_empty(module, batch)
    if isinstance(module, BatchNorm) and uses_batch_statistics(module) and _is_single(batch):
        raise UsageError(
            f"batch norm in training needs more than one value per channel, and this rank's shard of the "
            f"batch is {list(batch.shape)}. Use batch_norm='global', or a larger batch."
        )
    forward = partial(type(module).forward, module) if user_forward is None else user_forward
    result: Tensor = forward(batch, *args, **kwargs)
    if tracked is not None and _tracks(module):
        tracked.forwards += 1
        tracked.samples += len(batch)
    return result


def _normalize_empty(module: Norm, batch: Tensor) -> Tensor:
    """Return the output for an empty shard, without updating the statistics (torch would make them NaN)."""
    _check_input(module, batch)
    if not module.affine:
        return batch.clone()
    # Part of the graph, so that gradients are zeros; torch's own backward divides by the size 0 and crashes.
    scaled = batch * _per_channel(module.weight, batch) + _per_channel(module.bias, batch)
    return scaled.to(batch.dtype)


def _takes_empty(module: Norm) -> bool:
    """Return whether torch's forward of a norm accepts a batch of no samples as it is."""
    return isinstance(module, BatchNorm) and not uses_batch_statistics(module)


def _is_single(batch: Tensor) -> bool:
    return batch.dim() > 1 and batch.numel() == batch.shape[1]


def _has_torch_forward(module: Norm) -> bool:
    return own_forward(module) in (BatchNorm.forward, InstanceNorm.forward)


def raise_now(has_failed: Tensor, message: str) -> None:
    """Raise `UsageError` if `has_failed`, one boolean, is true; the host waits for the device to read it."""
    if bool(has_failed):
        raise UsageError(message)


def global_forward(module: BatchNorm, batch: Tensor, *, world: Ranks) -> Tensor:
    """Run a batch norm on this rank's shard with the statistics of the global batch; all ranks call this."""
    if not uses_batch_statistics(module):
        return BatchNorm.forward(module, batch)
    _check_input(module, batch)
    momentum = _count(module)
    running = (module.running_mean, module.running_var) if _tracks(module) else (None, None)
    affine = module.weight, module.bias
    return global_batch_norm(world, batch, running, affine, momentum=momentum, eps=module.eps)


def global_batch_norm(
    world: Ranks,
    batch: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    *,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    """Normalize this rank's shard (n, C, ...) with the statistics of the global batch; all ranks call this.

    Args:
        world: the ranks.
        batch: the shard.
        running: the running mean and variance (C,), which are updated; None for none.
        affine: weight and bias (C,); None for none.
        momentum: the share of this batch in the running statistics.
        eps: added to the variance.

    Raises:
        UsageError: the global batch has one value per channel, or none.
    """
    with torch.no_grad():
        count, mean, var = _combine(world, _local_moments(batch))
    # A rank with more values does not read `count`, and so does not wait for its device.
    if batch.numel() <= batch.shape[1]:
        raise_now(
            count[0] <= 1,
            f"batch norm in training needs more than one value per channel, and the global batch has at most "
            f"1 (this rank's shard: {list(batch.shape)}). Use a larger batch, or eval().",
        )
    running_mean, running_var = running
    if running_mean is not None and running_var is not None:
        unbiased = var * (count / (count - 1))
        # Through `data`, which does not change their version, as torch does it: the graph of torch's own
        # norm saves these buffers, and its backward fails once their version has changed.
        running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.data.lerp_(unbiased.to(running_var.dtype), momentum)
    normalize: Callable[..., Tensor] = _GlobalNorm.apply
    return normalize(batch, *affine, (count, mean, var), eps, world)


def _check_input(module: Norm, batch: Tensor) -> None:
    module._check_input_dim(batch)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as forward begins


def uses_batch_statistics(module: Norm) -> bool:
    """Return whether a norm uses the statistics of its input, not the running ones."""
    return module.training or module.running_mean is None


def _tracks(module: Norm) -> bool:
    return module.training and module.track_running_stats


def _count(module: BatchNorm) -> Any:
    """Count a training step, as torch does; return the weight of its statistics in the running ones.

    The weight is a number, or a tensor of shape () for a cumulative average, whose counter is on the device.
    """
    if _tracks(module) and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None and module.running_mean is not None:
            return module.num_batches_tracked.double().reciprocal().to(module.running_mean.dtype)
    return module.momentum or 0.0
