"""Gather: the tensors of all ranks come to one.

By a binomial tree, in which each rank passes on what it has got so far (N = 6; chunk r is rank r's)::

    step 0    0 <(1)- 1    2 <(3)- 3    4 <(5)- 5
    step 1    0 <---(2,3)- 2            4
    step 2    0 <-------------(4,5)---- 4

Cost: ceil(log2 N) steps; to the root come the (N-1)/N of the result that it has not. Of the others the
busiest sends what the largest subtree holds, up to a half of it.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from torch import Tensor

from samestep.collectives.agree import agree
from samestep.collectives.cost import Cost, doublings
from samestep.collectives.hop import Hop, Schedule, seen_from
from samestep.collectives.walk import copy_along
from samestep.world.operation import refuse_root
from samestep.world.world import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank, to rank 0; one chunk for each rank."""
    hops: Schedule = []
    for step in range(doublings(size)):
        distance = 1 << step
        if rank & distance:
            return [*hops, Hop(to=rank - distance, send=tuple(range(rank, min(rank + distance, size))))]
        if rank + distance < size:
            chunks = tuple(range(rank + distance, min(rank + 2 * distance, size)))
            hops.append(Hop(source=rank + distance, receive=chunks))
    return hops


def cost(size: int) -> Cost:
    """Return the cost among `size` ranks of a result that is the size of a tensor."""
    steps = doublings(size)
    half = (1 << steps) // 2
    return Cost(steps=steps, path=(size - 1) / size, sent=max(size - half, half // 2) / size if steps else 0)


def gather(world: World, tensor: Tensor, to: int = 0) -> list[Tensor] | None:
    """Return the tensors of all ranks, in rank order, on rank `to`; None on the others.

    Args:
        world: the ranks; all of them call this.
        tensor: of equal shape and type on all ranks.
        to: the rank that gets them.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is no rank `to`.
    """
    rank, size = world.place.rank, world.place.size
    refuse_root(to, size)
    agree(world, f"gather to rank {to}", tensor)
    rows = tensor.new_empty((size, *tensor.shape))
    rows[rank] = tensor.detach()
    hops = seen_from(to, size, schedule((rank - to) % size, size), chunks_too=True)
    copy_along(world, hops, rows.view(-1), chunks=size)
    return list(rows) if rank == to else None
