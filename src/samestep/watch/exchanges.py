"""Whatever a rank waits for others in, told of: collectives, messages, what samestep itself exchanges."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from samestep.collectives.shared_memory import SharedMemory
from samestep.replicas.synchroniser import Synchroniser
from samestep.watch.events import redirected

Within: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Returns what an exchange is made within, of which it is given what exchanges."""

COLLECTIVES = "collectives"
"""What exchanges where it is torch.distributed."""
IN_MEMORY = "in memory"
"""What exchanges where ranks of one host do it themselves, in memory that they share."""

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
_BY_THEMSELVES = ("agree", "all_gather", "all_reduce", "average", "barrier", "broadcast", "fold")


@contextmanager
def exchanges_within(within: Within, finished: Callable[[Synchroniser], None]) -> Iterator[None]:
    """Within, all exchanges of this process are made within what `within` returns.

    Args:
        within: see `Within`.
        finished: told of each synchroniser that has exchanged gradients.
    """

    def collective(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with within(COLLECTIVES):
            return original(*args, **kwargs)

    def in_memory(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with within(IN_MEMORY):
            return original(*args, **kwargs)

    def of_gradients(original: Callable[..., Any], synchroniser: Any) -> None:
        with within(type(synchroniser).__name__.lower()):
            original(synchroniser)
        finished(synchroniser)

    with ExitStack() as stack:
        for name in _FUNCTIONS:
            if hasattr(dist, name):
                stack.enter_context(redirected(dist, name, collective))
        # DistributedDataParallel's buffers.
        stack.enter_context(redirected(dist, "_broadcast_coalesced", collective))
        stack.enter_context(redirected(c10d.Work, "wait", collective))
        stack.enter_context(redirected(torch.futures.Future, "wait", collective))
        for name in _BY_THEMSELVES:
            stack.enter_context(redirected(SharedMemory, name, in_memory))
        stack.enter_context(redirected(Synchroniser, "finish", of_gradients))
        yield
