"""Computes batch norm within split calls over the whole batch, as on one worker."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samestep.autopilot.split.slice_context import before_collective
from samestep.base.context_values import bound
from samestep.hooks import declarations
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
        return global_forward(module, batch, world=world)

    return bound(_current, normalize)


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
