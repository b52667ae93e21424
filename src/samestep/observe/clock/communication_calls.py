"""Wraps all communication of this process: collectives, messages and gradient synchronization."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from samestep.hooks.training_events import replaced
from samestep.parallel.gradients.synchronizer import GradientSynchronizer
from samestep.ranks.collectives.shared_memory import SharedMemory

COLLECTIVES = "collectives"
"""Communication by torch.distributed."""
IN_MEMORY = "in memory"
"""Communication through the shared memory of one host, by the ranks' own threads."""


class CommunicationWrapper(Protocol):
    """A function that performs a communication call."""

    def __call__(self, kind: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return ``call(*args, **kwargs)``.

        Args:
            kind: `COLLECTIVES`, `IN_MEMORY`, or the name of a gradient synchronizer.
            call: the communication call.
            args: its arguments.
            kwargs: its keyword arguments.
        """


_FUNCTIONS = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)
_SHARED_MEMORY_METHODS = ("agree", "all_gather", "all_reduce", "average", "barrier", "broadcast", "fold")


@contextmanager
def communication_through(
    wrapper: CommunicationWrapper, finished: Callable[[GradientSynchronizer], None]
) -> Iterator[None]:
    """Perform all communication of this process through `wrapper` for the duration of a block.

    Args:
        wrapper: see `CommunicationWrapper`.
        finished: called with each gradient synchronizer that has averaged gradients.
    """

    def by_kind(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: wrapper(kind, call, *args, **kwargs)

    def of_gradients(finish: Callable[..., Any]) -> Callable[..., None]:
        def call(synchronizer: GradientSynchronizer) -> None:
            wrapper(type(synchronizer).__name__.lower(), finish, synchronizer)
            finished(synchronizer)

        return call

    collective, in_memory = partial(by_kind, COLLECTIVES), partial(by_kind, IN_MEMORY)
    with ExitStack() as stack:
        for name in _FUNCTIONS:
            if hasattr(dist, name):
                stack.enter_context(replaced(dist, name, collective))
        # DistributedDataParallel broadcasts its buffers by this function.
        stack.enter_context(replaced(dist, "_broadcast_coalesced", collective))
        stack.enter_context(replaced(c10d.Work, "wait", collective))
        stack.enter_context(replaced(torch.futures.Future, "wait", collective))
        for name in _SHARED_MEMORY_METHODS:
            stack.enter_context(replaced(SharedMemory, name, in_memory))
        stack.enter_context(replaced(GradientSynchronizer, "finish", of_gradients))
        yield
