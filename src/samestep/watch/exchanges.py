"""Whatever a rank waits for others in, told of: collectives, messages, what samestep itself exchanges."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from samestep.collectives.shared_memory import SharedMemory
from samestep.replicas.synchroniser import Synchroniser
from samestep.watch.events import remade

COLLECTIVES = "collectives"
"""What exchanges where it is torch.distributed."""
IN_MEMORY = "in memory"
"""What exchanges where ranks of one host do it themselves, in memory that they share."""


class Exchange(Protocol):
    """Makes an exchange."""

    def __call__(self, what: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return what `make` returns for the arguments.

        Args:
            what: exchanges: one of the two above, or a synchroniser, by its name.
            make: makes the exchange.
            args: are given to it.
            kwargs: as well.
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
_BY_THEMSELVES = ("agree", "all_gather", "all_reduce", "average", "barrier", "broadcast", "fold")


@contextmanager
def exchanges_made_by(exchange: Exchange, finished: Callable[[Synchroniser], None]) -> Iterator[None]:
    """Within, all exchanges of this process are made by `exchange`.

    Args:
        exchange: see `Exchange`.
        finished: told of each synchroniser that has exchanged gradients.
    """

    def by_what(what: str, make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: exchange(what, make, *args, **kwargs)

    def of_gradients(finish: Callable[..., Any]) -> Callable[..., None]:
        def call(synchroniser: Synchroniser) -> None:
            exchange(type(synchroniser).__name__.lower(), finish, synchroniser)
            finished(synchroniser)

        return call

    collective, in_memory = partial(by_what, COLLECTIVES), partial(by_what, IN_MEMORY)
    with ExitStack() as stack:
        for name in _FUNCTIONS:
            if hasattr(dist, name):
                stack.enter_context(remade(dist, name, collective))
        # DistributedDataParallel's buffers.
        stack.enter_context(remade(dist, "_broadcast_coalesced", collective))
        stack.enter_context(remade(c10d.Work, "wait", collective))
        stack.enter_context(remade(torch.futures.Future, "wait", collective))
        for name in _BY_THEMSELVES:
            stack.enter_context(remade(SharedMemory, name, in_memory))
        stack.enter_context(remade(Synchroniser, "finish", of_gradients))
        yield
