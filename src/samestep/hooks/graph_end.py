"""Calls back when a backward reaches the end of its autograd graph, where only communication is left."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class GraphEnd:
    """A callback at the end of the graph of one backward at a time.

    Autograd runs its final callbacks in the order in which they were queued. This one is queued first, so
    that it runs before the callback in which DistributedDataParallel waits for communication.

    Args:
        callback: runs at the end of the graph.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._hook: Any = None

    def follow(self, losses: Sequence[Tensor]) -> None:
        """Register the callback for the backward that is about to begin from `losses`."""
        for loss in losses:
            if loss.grad_fn is not None:
                self._hook = loss.grad_fn.register_prehook(self._begun)
                return

    def remove_hook(self) -> None:
        """Remove the hook, so that another backward of the same graph is not followed."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _begun(self, _: Sequence[Tensor]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - no public spelling
        engine.queue_callback(self._callback)
