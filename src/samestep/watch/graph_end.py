"""The moment at which a backward has come to the end of its graph: what is left of it is exchange."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class GraphEnd:
    """Calls back at the end of the graph.

    Autograd does so in the order in which it was asked to: this asks first, so that what a
    DistributedDataParallel waits for then comes after it.

    Args:
        then: is called.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._hook: Any = None

    def follow(self, losses: Sequence[Tensor]) -> None:
        """Have the backward followed that is about to begin from `losses`."""
        for loss in losses:
            if loss.grad_fn is not None:
                self._hook = loss.grad_fn.register_prehook(self._begun)
                return

    def leave(self) -> None:
        """Have no other backward of that graph followed."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _begun(self, _: Sequence[Tensor]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - no public spelling
        engine.queue_callback(self._then)
