"""Batch norm within a split call: over the whole batch, as on one worker, or over each slice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.autopilot.cut import Cut
from samestep.autopilot.failing_together import before_collective
from samestep.replicas.batch_norm import global_forward, uses_batch_statistics
from samestep.world.world import World

_world: ContextVar[World | None] = ContextVar("samestep_split_over", default=None)
_seen: ContextVar[dict[int, BatchNorm] | None] = ContextVar("samestep_local_norms", default=None)


@contextmanager
def over_all_ranks(world: World) -> Iterator[None]:
    """Within, this rank's slices are normalised as parts of the whole batch."""
    token = _world.set(world)
    try:
        yield
    finally:
        _world.reset(token)


@contextmanager
def over_each_slice(cut: Cut) -> Iterator[None]:
    """Within, this rank's slices are normalised by themselves; all ranks leave with the same statistics."""
    seen: dict[int, BatchNorm] = {}
    token = _seen.set(seen)
    try:
        yield
    finally:
        _seen.reset(token)
    _average([one for one in seen.values() if one.track_running_stats], cut)


def normalises(module: nn.Module) -> bool:
    """Return whether a call of a module normalises with the statistics of what it is given."""
    return any(isinstance(one, BatchNorm) and uses_batch_statistics(one) for one in module.modules())


def _average(norms: list[BatchNorm], cut: Cut) -> None:
    """Average running statistics over the ranks, by the samples of each.

    They are linear in what they have averaged: this is the moving average of the averaged statistics. The
    steps were counted alike.
    """
    groups: dict[torch.dtype, list[Tensor]] = {}
    for norm in norms:
        for buffer in (norm.running_mean, norm.running_var):
            if buffer is not None:
                # As `data`, so that a graph that is kept for a second backward does not mind.
                groups.setdefault(buffer.dtype, []).append(buffer.data)
    for buffers in groups.values():
        flat = torch.cat(buffers) * (cut.local / cut.total)
        cut.world.all_reduce(flat)
        means = torch.split(flat, [one.numel() for one in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean)


@contextmanager
def batch_norm_of_slices() -> Iterator[None]:
    """Have all batch norms of this process look whether they are given a slice.

    `torch.compile` leaves them to Python: an exchange cannot be part of a compiled graph.
    """
    original: Callable[[Any, Tensor], Tensor] = BatchNorm.forward

    def forward(module: Any, batch: Tensor) -> Tensor:
        world, seen = _world.get(), _seen.get()
        if not uses_batch_statistics(module):
            return original(module, batch)
        if world is not None:
            before_collective()
            return global_forward(module, batch, world=world)
        if seen is not None:
            seen[id(module)] = module
        return original(module, batch)

    BatchNorm.forward = torch.compiler.disable(forward)  # type: ignore[method-assign, no-untyped-call]
    try:
        yield
    finally:
        BatchNorm.forward = original  # type: ignore[method-assign, assignment]
