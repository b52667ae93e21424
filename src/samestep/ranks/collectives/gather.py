"""Gather: one rank gets the tensors of all ranks.

On a binomial tree, each rank forwards the chunks it has so far (N = 6; chunk r is rank r's)::

    step 0    0 <(1)- 1    2 <(3)- 3    4 <(5)- 5
    step 1    0 <---(2,3)- 2            4
    step 2    0 <-------------(4,5)---- 4

Cost: ceil(log2 N) steps; the root receives (N-1)/N of the result. The busiest sender sends the chunks of the
largest subtree, at most half of the result.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from torch import Tensor

from samestep.base.renamed import renamed_arguments
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost, doublings
from samestep.ranks.collectives.executor import copy_along
from samestep.ranks.collectives.schedule import Hop, Schedule, rerooted
from samestep.ranks.world.operation import refuse_root
from samestep.ranks.world.protocol import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank, to rank 0; there is one chunk per rank."""
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
    """Return the cost on `size` ranks, in sizes of the result."""
    steps = doublings(size)
    half = (1 << steps) // 2
    return Cost(steps=steps, path=(size - 1) / size, sent=max(size - half, half // 2) / size if steps else 0)


@renamed_arguments(to="dst")
def gather(world: World, tensor: Tensor, dst: int = 0) -> list[Tensor] | None:
    """Return the tensors of all ranks, in rank order, on rank `dst`; None on the others.

    Args:
        world: the ranks; all of them call this.
        tensor: this rank's tensor, of equal shape and type on all ranks.
        dst: the rank that gets them.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is no rank `dst`.
    """
    rank, size = world.place.rank, world.place.size
    refuse_root(dst, size)
    agree(world, f"gather to rank {dst}", tensor)
    rows = tensor.new_empty((size, *tensor.shape))
    rows[rank] = tensor.detach()
    hops = rerooted(dst, size, schedule((rank - dst) % size, size), chunks_too=True)
    copy_along(world, hops, rows.view(-1), chunks=size)
    return list(rows) if rank == dst else None
