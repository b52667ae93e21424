"""Broadcast, reduce, gather and scatter: collectives in which one rank, the root, has the data or gets it.

On a binomial tree, each rank forwards to its parent what it has so far; a broadcast and a scatter are a
reduce and a gather in reverse (N = 6, root 0)::

    step 0    0 < 1    2 < 3    4 < 5
    step 1    0 <----- 2        4
    step 2    0 <-------------- 4

Schedules are for root 0; ranks are renumbered for another one. ``docs/lab/collectives`` has a page for each.

Sources: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005; broadcast by scatter and all-gather: M. Barnett and others: Interprocessor collective communication
library, 1994.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from samestep.base.renamed import renamed_arguments
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.world.operation import (
    Op,
    check_operation,
    check_root,
    finish,
    flattened,
    headroom,
    put_back,
)
from samestep.ranks.world.protocol import World
from samestep_lab.collectives import ring
from samestep_lab.collectives.executor import accumulator, combine_along, copy_along
from samestep_lab.collectives.schedule import (
    Chunks,
    Hop,
    Schedule,
    backwards,
    doublings,
    rerooted,
)


def reduce_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a reduce; there is one chunk."""
    return _up_the_tree(rank, size, lambda *_: (0,))


def broadcast_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a broadcast; there is one chunk."""
    return backwards(reduce_schedule(rank, size))


def gather_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a gather; there is one chunk per rank."""
    return _up_the_tree(rank, size, lambda first, end: tuple(range(first, end)))


def scatter_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a scatter; there is one chunk per rank."""
    return backwards(gather_schedule(rank, size))


def naive_reduce_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a reduce without a tree: rank 0 receives from the others in order."""
    if rank:
        return [Hop(to=0, send=(0,))]
    return [Hop(source=source, receive=(0,)) for source in range(1, size)]


def naive_broadcast_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a broadcast without a tree: rank 0 sends to the others in order."""
    return backwards(naive_reduce_schedule(rank, size))[::-1]


def scatter_all_gather_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a broadcast: a scatter, and an all-gather on a ring."""
    return scatter_schedule(rank, size) + ring.all_gather_schedule(rank, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A broadcast algorithm. Its functions take a rank and the number of ranks, or only the latter."""

    name: str  # name of the algorithm
    chunks: Callable[[int], int]  # number of chunks of a tensor
    schedule: Callable[[int, int], Schedule]  # hops of a rank, from rank 0

    @renamed_arguments(source="src")
    def __call__(self, world: World, tensor: Tensor, src: int = 0) -> None:
        """Overwrite `tensor`, of equal shape and type everywhere, with that of `src`; all ranks call this.

        Raises:
            OutOfStep: the ranks call with different arguments.
            UsageError: there is no rank `src`.
        """
        rank, size = world.place.rank, world.place.size
        check_root(src, size)
        agree(world, f"broadcast from rank {src} by {self.name}", tensor)
        flat = flattened(tensor)
        hops = rerooted(src, size, self.schedule((rank - src) % size, size))
        copy_along(world, hops, flat, chunks=self.chunks(size))
        if rank != src:
            put_back(flat, tensor)


NAIVE_BROADCAST = Broadcast(name="naive", chunks=lambda _: 1, schedule=naive_broadcast_schedule)
TREE_BROADCAST = Broadcast(name="tree", chunks=lambda _: 1, schedule=broadcast_schedule)
"""The fastest for small tensors."""
SCATTER_ALL_GATHER_BROADCAST = Broadcast(
    name="scatter_all_gather",
    chunks=lambda size: size,
    schedule=scatter_all_gather_schedule,
)
"""The fastest for large tensors on three ranks or more."""


@renamed_arguments(to="dst")
def reduce(world: World, tensor: Tensor, op: Op = "sum", dst: int = 0) -> None:
    """Reduce `tensor`, of equal shape and type on all ranks, into that of rank `dst`; all ranks call this.

    The other ranks' tensors are unchanged. Half precisions are summed in single precision on each rank.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: the operation is not defined for the type, or there is no rank `dst`.
    """
    rank, size = world.place.rank, world.place.size
    check_root(dst, size)
    agree(world, f"reduce {op} to rank {dst}", tensor)
    check_operation(op, tensor.dtype)
    hops = rerooted(dst, size, reduce_schedule((rank - dst) % size, size))
    flat, divisor = flattened(tensor), headroom(op, tensor.dtype, size)
    total = accumulator(flat, divisor)
    if rank != dst and total is flat:
        total = flat.clone()
    combine_along(world, hops, total, flat, op, chunks=1)
    if rank == dst:
        finish(total, op, size, divisor)
        flat.copy_(total)
        put_back(flat, tensor)


@renamed_arguments(to="dst")
def gather(world: World, tensor: Tensor, dst: int = 0) -> list[Tensor] | None:
    """Return the tensors of all ranks, of equal shape and type, on rank `dst`; None on the others.

    All ranks call this.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is no rank `dst`.
    """
    rank, size = world.place.rank, world.place.size
    check_root(dst, size)
    agree(world, f"gather to rank {dst}", tensor)
    rows = tensor.new_empty((size, *tensor.shape))
    rows[rank] = tensor.detach()
    hops = rerooted(dst, size, gather_schedule((rank - dst) % size, size), chunks_too=True)
    copy_along(world, hops, rows.view(-1), chunks=size)
    return list(rows) if rank == dst else None


@renamed_arguments(source="src")
def scatter(world: World, rows: Tensor, src: int = 0) -> Tensor:
    """Return this rank's row of the tensor of rank `src`; all ranks call this, with equal shapes and types.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is not one row per rank, or no rank `src`.
    """
    rank, size = world.place.rank, world.place.size
    check_root(src, size)
    agree(world, f"scatter from rank {src}", rows)
    ring.check_rows(rows, size)
    flat = flattened(rows) if rank == src else rows.new_empty(rows.numel())
    hops = rerooted(src, size, scatter_schedule((rank - src) % size, size), chunks_too=True)
    copy_along(world, hops, flat, chunks=size)
    return flat.view(rows.shape)[rank].clone()


def _up_the_tree(rank: int, size: int, chunks: Callable[[int, int], Chunks]) -> Schedule:
    """Return the hops of one rank to rank 0; `chunks` gives those of a range of ranks by its two ends."""
    hops: Schedule = []
    for step in range(doublings(size)):
        distance = 1 << step
        if rank & distance:
            return [*hops, Hop(to=rank - distance, send=chunks(rank, min(rank + distance, size)))]
        if (child := rank + distance) < size:
            hops.append(Hop(source=child, receive=chunks(child, min(child + distance, size))))
    return hops
