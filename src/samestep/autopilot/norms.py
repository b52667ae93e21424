"""Batch norm within a split call: over the whole batch, as on one worker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.replicas.batch_norm import global_forward, uses_batch_statistics
from samestep.world.world import World

_world: ContextVar[World | None] = ContextVar("samestep_split_over", default=None)


@contextmanager
def over_all_ranks(world: World) -> Iterator[None]:
    """Within, this rank's slices are normalised as parts of the whole batch."""
    token = _world.set(world)
    try:
        yield
    finally:
        _world.reset(token)


@contextmanager
def batch_norm_of_slices() -> Iterator[None]:
    """Have all batch norms of this process look whether they are given a slice."""
    original: Callable[[Any, Tensor], Tensor] = BatchNorm.forward

    def forward(module: Any, batch: Tensor) -> Tensor:
        world = _world.get()
        if world is None or not uses_batch_statistics(module):
            return original(module, batch)
        return global_forward(module, batch, world=world)

    BatchNorm.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BatchNorm.forward = original  # type: ignore[method-assign, assignment]
