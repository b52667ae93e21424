"""Chooses what carries the small messages of ranks that compute on CPUs: memory, or direct connections.

=========================== ======================================================
ranks                       their collectives
=========================== ======================================================
of one host                 shared memory, see `shared_memory_world`
of several, at most `RANKS` direct connections up to 1 MiB, else the back end
others                      the back end
=========================== ======================================================
"""

import sys
from functools import partial

from torch import Tensor

from samestep.ranks.collectives.call_counter import DIRECT, progress_of
from samestep.ranks.collectives.direct import Connections, DirectCollectives
from samestep.ranks.collectives.shared_memory_world import is_plain, on_one_host
from samestep.ranks.rendezvous.peer_connections import NotConnected, connect_ranks
from samestep.ranks.world.operation import Op, check_operation
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import RelayedWorld, Work, World

MOST = 1 << 20
"""Largest tensor in bytes; from there on Gloo takes as long."""
MOST_LATER = 1 << 18
"""Largest tensor in bytes of an all-reduce to wait for later: Gloo sends a larger one meanwhile."""
RANKS = 16
"""Most ranks with direct connections: each rank has one to each other."""


def low_latency(world: World) -> World:
    """Return the world of the same ranks whose small messages arrive first; all ranks call this.

    It is `world` itself where the back end is the only way.
    """
    near = on_one_host(world)
    return near if near is not world else by_connections(world)


def by_connections(world: World) -> World:
    """Return a world whose ranks have direct connections; `world` itself where they cannot have any.

    All ranks call this. If the ranks cannot be connected, rank 0 prints the reason.
    """
    if not isinstance(world, ProcessGroupWorld) or not world.uses_gloo or world.place.size > RANKS:
        return world
    if world.direct is None:
        world.direct = _connected(world)
    return world.direct


def separates_gradients(world: World) -> bool:
    """Return whether batch norm may communicate in a backward that sends gradients meanwhile.

    Direct connections carry the sums of batch norm, and Gloo the gradients, so neither waits for the other.
    """
    return isinstance(world, DirectWorld)


def _connected(world: ProcessGroupWorld) -> World:
    rank, size = world.place.rank, world.place.size
    try:
        sockets = connect_ranks(world)
    except NotConnected as reason:
        if world.place.is_main:
            sys.stderr.write(
                f"samestep: direct connections are not used: {reason}. Gloo carries all tensors.\n"
            )
        return world
    connections = Connections(rank, sockets, timeout_s=world.timeout_s)
    world.share_end(connections)
    progress = progress_of(range(size), size, DIRECT)
    return DirectWorld(world, DirectCollectives(connections, rank=rank, size=size, progress=progress))


class DirectWorld(RelayedWorld):
    """World whose small messages use direct connections; `inner` carries large ones, and objects."""

    def __init__(self, inner: ProcessGroupWorld, collectives: DirectCollectives) -> None:
        super().__init__(inner)
        self._waiting, self._collectives = inner.waiting, collectives

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        if _is_small(tensor, MOST):
            self.reduce_directly(tensor, op)
        else:
            self.inner.all_reduce(tensor, op=op)

    def reduce_directly(self, tensor: Tensor, op: Op) -> None:
        """Reduce a tensor of any size by the direct connections."""
        check_operation(op, tensor.dtype)
        with self._waiting("all_reduce"):
            self._collectives.all_reduce(tensor, op=op)

    def gather_directly(self, tensor: Tensor) -> list[Tensor]:
        """Gather tensors of any size by the direct connections."""
        with self._waiting("all_gather"):
            return self._collectives.all_gather(tensor)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; see `average_later` for small ones."""
        if not _is_small(tensor, MOST_LATER):
            return self.inner.all_reduce_later(tensor)
        return _Deferred(self, tensor, "sum")

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`; a small tensor is averaged by `wait`.

        So gradients that are ready at different times on the ranks, within backward, cannot come between the
        messages of batch norm there, which all ranks have to send in one order.
        """
        if not _is_small(tensor, MOST_LATER):
            return self.inner.average_later(tensor)
        return _Deferred(self, tensor, "mean")

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        return self.gather_directly(tensor) if _is_small(tensor, MOST) else self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        with self._waiting("barrier"):
            self._collectives.barrier()


class _Deferred:
    """All-reduce that is executed when it is waited for."""

    def __init__(self, world: DirectWorld, tensor: Tensor, op: Op) -> None:
        self._call = partial(world.reduce_directly, tensor, op)

    def wait(self) -> None:
        """See `Work.wait`."""
        self._call()


def _is_small(tensor: Tensor, most: int) -> bool:
    return tensor.nbytes <= most and is_plain(tensor)
