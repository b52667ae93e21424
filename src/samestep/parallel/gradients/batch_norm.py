"""Redirects the forward of batch norms, to compute statistics over each rank's shard or the global batch.

``local`` statistics are those of a rank's shard: fast, and another training than the serial one. ``global``
statistics are those of the global batch, in forward and backward: they give the serial result, for two small
all-reduces per layer. The modules stay the same objects. Calls of instance norms are redirected too: they are
local by definition, but may have running statistics.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.hooks.module_parts import Forward, Undo, original_forward, redirect
from samestep.parallel.gradients.global_batch_norm import (
    GlobalNorm,
    Ranks,
    combine,
    local_moments,
    per_channel,
)
from samestep.parallel.gradients.running_statistics import BatchNorm, InstanceNorm, Norm, TrackedNorm
from samestep.ranks.world.protocol import World


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
    trackers = {one.module: one for one in tracked}
    undo = []
    for module in modules:
        own = None if _has_torch_forward(module) else original_forward(module)
        undo.append(redirect(module, partial(_local_forward, own=own, tracked=trackers.get(module))))
    return undo


def use_global_statistics(modules: Iterable[BatchNorm], world: World) -> list[Undo]:
    """Make all ranks normalize with the statistics of the global batch.

    These forwards are excluded from `torch.compile`: a compiled graph cannot contain their all-gather.
    """
    return [redirect(module, partial(global_forward, world=world), compiled=False) for module in modules]


def _local_forward(
    module: Norm, batch: Tensor, *args: Any, own: Forward | None, tracked: TrackedNorm | None, **kwargs: Any
) -> Tensor:
    if batch.numel() == 0 and uses_batch_statistics(module):
        if own is not None:
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
    forward = partial(type(module).forward, module) if own is None else own
    result: Tensor = forward(batch, *args, **kwargs)
    if tracked is not None and _tracks(module):
        tracked.forwards += 1
    return result


def _normalize_empty(module: Norm, batch: Tensor) -> Tensor:
    """Return the output for an empty shard, without updating the statistics (torch would make them NaN)."""
    _check_input(module, batch)
    if not module.affine:
        return batch.clone()
    # Part of the graph, so that gradients are zeros; torch's own backward divides by the size 0 and crashes.
    scaled = batch * per_channel(module.weight, batch) + per_channel(module.bias, batch)
    return scaled.to(batch.dtype)


def _is_single(batch: Tensor) -> bool:
    return batch.dim() > 1 and batch.numel() == batch.shape[1]


def _has_torch_forward(module: Norm) -> bool:
    known = (BatchNorm.forward, InstanceNorm.forward)
    return type(module).forward in known and "forward" not in vars(module)


def raise_now(has_failed: Tensor, message: str) -> None:
    """Raise `UsageError` if `has_failed`, one boolean, is true; the host waits for the device to read it."""
    if bool(has_failed):
        raise UsageError(message)


def global_forward(
    module: BatchNorm, batch: Tensor, *, world: Ranks, refuse: Callable[[Tensor, str], None] = raise_now
) -> Tensor:
    """Run a batch norm on this rank's shard with the statistics of the global batch; all ranks call this.

    `refuse` gets the message of an error, and whether it has occurred, as a boolean on the device.
    """
    if not uses_batch_statistics(module):
        return BatchNorm.forward(module, batch)
    _check_input(module, batch)
    with torch.no_grad():
        count, mean, var = combine(world, local_moments(batch))
    # A rank with more values does not read `count`, and so does not wait for its device.
    if batch.numel() <= batch.shape[1]:
        refuse(
            count[0] <= 1,
            f"batch norm in training needs more than one value per channel, and the global batch has at most "
            f"1 (this rank's shard: {list(batch.shape)}). Use a larger batch, or eval().",
        )
    momentum = _count(module)
    if _tracks(module) and module.running_mean is not None and module.running_var is not None:
        unbiased = var * (count / (count - 1))
        # Through `data`, which does not change their version, as torch does it: the graph of torch's own
        # norm saves these buffers, and its backward fails once their version has changed.
        module.running_mean.data.lerp_(mean.to(module.running_mean.dtype), momentum)
        module.running_var.data.lerp_(unbiased.to(module.running_var.dtype), momentum)
    normalize: Callable[..., Tensor] = GlobalNorm.apply
    return normalize(batch, module.weight, module.bias, (count, mean, var), module.eps, world)


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
