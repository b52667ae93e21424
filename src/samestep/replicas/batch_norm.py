"""Batch norm on several ranks: what its statistics are taken over.

`local`: each rank's share. Fast, and a different training from the serial one, as everywhere.
`global`: the global batch, forward and backward. The serial result, for two small exchanges per layer.

Either way the module stays what it is; calls of it are redirected.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.replicas.global_norm import GlobalNorm, combine, local_moments, per_channel
from samestep.replicas.redirect import Undo, redirect
from samestep.replicas.running import BatchNorm, Tracked
from samestep.world.world import World


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of `model`, by name.

    Raises:
        UsageError: one of them has a forward of its own, of which nothing can be promised.
    """
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue  # SyncBatchNorm is global already
        if type(module).forward is not BatchNorm.forward:
            raise UsageError(
                f"{name or 'the model'} ({type(module).__name__}) is a batch norm with a forward of its own, "
                "whose statistics samestep cannot share. Use torch's BatchNorm, or rename the class's base."
            )
        found[name] = module
    return found


def track(modules: dict[str, BatchNorm]) -> list[Tracked]:
    """Return those of the batch norms that keep running statistics."""
    return [Tracked(module) for module in modules.values() if module.running_mean is not None]


def keep_local(modules: dict[str, BatchNorm], tracked: list[Tracked]) -> list[Undo]:
    """Let each rank normalise its own share, an empty one too."""
    trackers = {one.module: one for one in tracked}
    return [
        redirect(module, partial(_local_forward, tracked=trackers.get(module))) for module in modules.values()
    ]


def make_global(modules: dict[str, BatchNorm], world: World) -> list[Undo]:
    """Let all ranks normalise with the statistics of the global batch."""
    return [redirect(module, partial(_global_forward, world=world)) for module in modules.values()]


def _local_forward(module: BatchNorm, batch: Tensor, *, tracked: Tracked | None) -> Tensor:
    if batch.numel() or not _uses_batch_statistics(module):
        if tracked is not None and module.training:
            tracked.seen = True
        return BatchNorm.forward(module, batch)
    # No samples: no statistics either (torch's would be NaN), but the step is counted as elsewhere.
    _check_input(module, batch)
    _count(module)
    if not module.affine:
        return batch.clone()
    # In the graph, so that the gradients are zeros; torch's own backward divides by the size 0 and crashes.
    return batch * per_channel(module.weight, batch) + per_channel(module.bias, batch)


def _global_forward(module: BatchNorm, batch: Tensor, *, world: World) -> Tensor:
    if not _uses_batch_statistics(module):
        return BatchNorm.forward(module, batch)
    _check_input(module, batch)
    with torch.no_grad():
        count, mean, var = combine(world, local_moments(batch))
    if batch.numel() <= batch.shape[1] and count.item() <= 1:  # no rank with more looks: it need not wait
        raise UsageError(
            f"batch norm in training needs more than one value per channel, and the global batch has "
            f"{int(count.item())} (this rank's share: {list(batch.shape)}). Use a larger batch, or eval()."
        )
    momentum = _count(module)
    if module.training and module.running_mean is not None and module.running_var is not None:
        unbiased = var * (count / (count - 1))
        module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
        module.running_var.lerp_(unbiased.to(module.running_var.dtype), momentum)
    normalise: Callable[..., Tensor] = GlobalNorm.apply
    return normalise(batch, module.weight, module.bias, (count, mean, var), module.eps, world)


def _check_input(module: BatchNorm, batch: Tensor) -> None:
    module._check_input_dim(batch)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as forward begins


def _uses_batch_statistics(module: BatchNorm) -> bool:
    return module.training or module.running_mean is None


def _count(module: BatchNorm) -> float:
    """Count a training step, as torch does; return the weight of its statistics in the running ones."""
    if module.training and module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # cumulative average
            return 1.0 / float(module.num_batches_tracked)
    return module.momentum or 0.0
