"""Reduce: one rank gets the reduction of all ranks' tensors.

On a binomial tree, each rank adds the tensors of its children and sends the sum to its parent (N = 6)::

    step 0    0 < 1    2 < 3    4 < 5
    step 1    0 <----- 2        4
    step 2    0 <-------------- 4

Cost: L = ceil(log2 N) steps of the whole tensor, one after another; each rank but the root sends it once.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from torch import Tensor

from samestep.base.renamed import renamed_arguments
from samestep.ranks.collectives.arithmetic import accumulator, finish
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost, doublings
from samestep.ranks.collectives.executor import combine_along, flattened, put_back
from samestep.ranks.collectives.schedule import Hop, Schedule, rerooted
from samestep.ranks.world.operation import Op, headroom, refuse, refuse_root
from samestep.ranks.world.protocol import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank, to rank 0; there is one chunk."""
    hops: Schedule = []
    for step in range(doublings(size)):
        distance = 1 << step
        if rank & distance:
            return [*hops, Hop(to=rank - distance, send=(0,))]
        if rank + distance < size:
            hops.append(Hop(source=rank + distance, receive=(0,)))
    return hops


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    steps = doublings(size)
    return Cost(steps=steps, path=steps, sent=min(1, size - 1))


@renamed_arguments(to="dst")
def reduce(world: World, tensor: Tensor, op: Op = "sum", dst: int = 0) -> None:
    """Reduce `tensor` over all ranks into that of rank `dst`; the other ranks' tensors are unchanged.

    Half precisions are summed in single precision on each rank.

    Args:
        world: the ranks; all of them call this.
        tensor: of equal shape and type on all ranks.
        op: the operation.
        dst: the rank that gets the result.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: the operation is not defined for the type, or there is no rank `dst`.
    """
    rank, size = world.place.rank, world.place.size
    refuse_root(dst, size)
    agree(world, f"reduce {op} to rank {dst}", tensor)
    refuse(op, tensor.dtype)
    hops = rerooted(dst, size, schedule((rank - dst) % size, size))
    flat, divisor = flattened(tensor), headroom(op, tensor.dtype, size)
    total = accumulator(flat, divisor)
    if rank != dst and total is flat:
        total = flat.clone()
    combine_along(world, hops, total, flat, op, chunks=1)
    if rank == dst:
        finish(total, op, size, divisor)
        flat.copy_(total)
        put_back(flat, tensor)
