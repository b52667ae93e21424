"""Computes batch norm within split calls: over the whole batch, as on one worker, or over each slice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.autopilot.split.deferred_checks import refuse
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_context import before_collective
from samestep.base.context_values import bound
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached
from samestep.parallel.gradients.batch_norm import global_forward, uses_batch_statistics
from samestep.ranks.world.protocol import World

_Normalize: TypeAlias = Callable[[Callable[..., Tensor], Any, Tensor], Tensor]
"""Normalizes a batch with its statistics, given the original forward, the layer and the batch."""
_current: ContextVar[_Normalize | None] = ContextVar("samestep_batch_norm", default=None)


def batch_norm_over_ranks(world: World) -> AbstractContextManager[None]:
    """Normalize this rank's slices with the statistics of the whole batch."""

    def normalize(_: Callable[..., Tensor], module: Any, batch: Tensor) -> Tensor:
        before_collective()
        return global_forward(module, batch, world=world, refuse=refuse)

    return bound(_current, normalize)


@contextmanager
def batch_norm_over_slice(split: BatchSplit) -> Iterator[None]:
    """Normalize this rank's slices with their own statistics; then average the running statistics."""
    seen: dict[int, BatchNorm] = {}

    def normalize(original: Callable[..., Tensor], module: Any, batch: Tensor) -> Tensor:
        seen[id(module)] = module
        return original(module, batch)

    with bound(_current, normalize):
        yield
    _average([one for one in seen.values() if one.track_running_stats], split)


def uses_batch_norm(module: nn.Module) -> bool:
    """Return whether a call of a module normalizes with the statistics of its input."""
    return any(
        isinstance(one, BatchNorm) and uses_batch_statistics(one) for one in module_parts.modules(module)
    )


def _average(norms: list[BatchNorm], split: BatchSplit) -> None:
    """Average running statistics over the ranks, weighted by their samples.

    Running statistics are linear in the statistics of batches, so this is the moving average of the averaged
    statistics. The number of steps is the same on all ranks.
    """
    groups: dict[torch.dtype, list[Tensor]] = {}
    for norm in norms:
        for buffer in (norm.running_mean, norm.running_var):
            if buffer is not None:
                # Through `data`, so that a graph that is kept for a second backward stays valid.
                groups.setdefault(buffer.dtype, []).append(buffer.data)
    for buffers in groups.values():
        flat = torch.cat(buffers) * (split.local / split.total)
        split.world.all_reduce(flat)
        means = torch.split(flat, [one.numel() for one in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean)


@contextmanager
def batch_norm_of_slices() -> Iterator[None]:
    """Replace the forward of batch norm, so that it can normalize a slice.

    `torch.compile` does not compile it, because a compiled graph cannot contain communication.
    """

    def make(original: Callable[[Any, Tensor], Tensor]) -> Any:
        def forward(module: Any, batch: Tensor) -> Tensor:
            normalize = _current.get()
            if normalize is None or not uses_batch_statistics(module):
                return original(module, batch)
            return normalize(original, module, batch)

        return torch.compiler.disable(forward)  # type: ignore[no-untyped-call]

    with attached(declarations.BATCH_NORM, make):
        yield
