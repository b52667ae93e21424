"""Batch norm on several ranks: what its statistics are taken over.

`local`: each rank's share. Fast, and a different training from the serial one, as everywhere.
`global`: the global batch, forward and backward. The serial result, for two small exchanges per layer.

Either way the module stays what it is; calls of it are redirected. So are those of instance norm, which is
local by nature but may keep running statistics.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.replicas.global_norm import GlobalNorm, combine, local_moments, per_channel
from samestep.replicas.redirect import Forward, Undo, original_forward, redirect
from samestep.replicas.running import BatchNorm, InstanceNorm, Norm, Tracked
from samestep.world.world import World


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of `model`, by name; without SyncBatchNorm, which is global already."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    }


def instance_norms(model: nn.Module) -> dict[str, InstanceNorm]:
    """Return the instance norms of `model`, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, InstanceNorm)}


def refuse_own_forward(modules: Mapping[str, BatchNorm]) -> None:
    """Raise UsageError where a forward other than torch's would be replaced."""
    for name, module in modules.items():
        if not _has_torchs_forward(module):
            raise UsageError(
                f"{name or 'the model'} ({type(module).__name__}) is a batch norm with a forward of its own, "
                "which cannot run over the global batch. Use torch's BatchNorm, or batch_norm='local'."
            )


def track(modules: Mapping[str, Norm]) -> dict[str, Tracked]:
    """Return those of the norms that keep running statistics."""
    return {name: Tracked(module) for name, module in modules.items() if module.running_mean is not None}


def keep_local(modules: Iterable[Norm], tracked: Iterable[Tracked]) -> list[Undo]:
    """Let each rank normalise its own share, an empty one too."""
    trackers = {one.module: one for one in tracked}
    undo = []
    for module in modules:
        own = None if _has_torchs_forward(module) else original_forward(module)
        undo.append(redirect(module, partial(_local_forward, own=own, tracked=trackers.get(module))))
    return undo


def make_global(modules: Iterable[BatchNorm], world: World) -> list[Undo]:
    """Let all ranks normalise with the statistics of the global batch.

    `torch.compile` leaves these forwards to Python: an exchange cannot be part of a compiled graph.
    """
    return [redirect(module, partial(global_forward, world=world), compiled=False) for module in modules]


def _local_forward(
    module: Norm, batch: Tensor, *args: Any, own: Forward | None, tracked: Tracked | None, **kwargs: Any
) -> Tensor:
    if batch.numel() == 0 and uses_batch_statistics(module):
        if own is not None:
            raise UsageError(
                f"{type(module).__name__} has a forward of its own, which cannot run on this rank's empty "
                f"share {list(batch.shape)}. Call contribute_nothing() there, in place of the model."
            )
        return _normalise_nothing(module, batch)
    if isinstance(module, BatchNorm) and uses_batch_statistics(module) and _is_single(batch):
        raise UsageError(
            f"batch norm in training needs more than one value per channel, and this rank's share of the "
            f"batch is {list(batch.shape)}. Use batch_norm='global', which normalises over the global batch, "
            "or a larger batch."
        )
    forward = partial(type(module).forward, module) if own is None else own
    result: Tensor = forward(batch, *args, **kwargs)
    if tracked is not None and _tracks(module):
        tracked.seen += 1
    return result


def _normalise_nothing(module: Norm, batch: Tensor) -> Tensor:
    """Return an empty share as the layer would; its statistics are left alone (torch's would be NaN)."""
    _check_input(module, batch)
    if not module.affine:
        return batch.clone()
    # In the graph, so that the gradients are zeros; torch's own backward divides by the size 0 and crashes.
    scaled = batch * per_channel(module.weight, batch) + per_channel(module.bias, batch)
    return scaled.to(batch.dtype)


def _is_single(batch: Tensor) -> bool:
    return batch.dim() > 1 and batch.numel() == batch.shape[1]


def _has_torchs_forward(module: Norm) -> bool:
    known = (BatchNorm.forward, InstanceNorm.forward)
    return type(module).forward in known and "forward" not in vars(module)


def global_forward(module: BatchNorm, batch: Tensor, *, world: World) -> Tensor:
    """Run a batch norm on this rank's share of a batch, as a part of it; an exchange in training."""
    if not uses_batch_statistics(module):
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
    if _tracks(module) and module.running_mean is not None and module.running_var is not None:
        unbiased = var * (count / (count - 1))
        # As `data`, which leaves their version as it is, like torch: a graph of torch's own norm stores
        # these buffers, and refuses to run backward once their version has changed.
        module.running_mean.data.lerp_(mean.to(module.running_mean.dtype), momentum)
        module.running_var.data.lerp_(unbiased.to(module.running_var.dtype), momentum)
    normalise: Callable[..., Tensor] = GlobalNorm.apply
    return normalise(batch, module.weight, module.bias, (count, mean, var), module.eps, world)


def _check_input(module: Norm, batch: Tensor) -> None:
    module._check_input_dim(batch)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as forward begins


def uses_batch_statistics(module: Norm) -> bool:
    """Return whether a norm normalises with the statistics of what it is given, not with running ones."""
    return module.training or module.running_mean is None


def _tracks(module: Norm) -> bool:
    return module.training and module.track_running_stats


def _count(module: BatchNorm) -> float:
    """Count a training step, as torch does; return the weight of its statistics in the running ones."""
    if _tracks(module) and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # cumulative average
            return 1.0 / float(module.num_batches_tracked)
    return module.momentum or 0.0
