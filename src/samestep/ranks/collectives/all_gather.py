"""All-gather: each rank gets the tensors of all ranks.

On a ring, each rank forwards the chunk it received last (chunk r is rank r's; N = 4)::

    chunk sent by    rank 0  1  2  3
    step 0                0  1  2  3
    step 1                3  0  1  2
    step 2                2  3  0  1

Cost: N-1 steps; each rank sends (N-1)/N of the result, the lower bound.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from torch import Tensor

from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost
from samestep.ranks.collectives.executor import copy_along
from samestep.ranks.collectives.schedule import Hop, Schedule
from samestep.ranks.world.protocol import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank; there is one chunk per rank."""
    return [
        Hop(
            to=(rank + 1) % size,
            send=((rank - step) % size,),
            source=(rank - 1) % size,
            receive=((rank - step - 1) % size,),
        )
        for step in range(size - 1)
    ]


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks, in sizes of the result."""
    return Cost(steps=size - 1, path=(size - 1) / size, sent=(size - 1) / size)


def all_gather(world: World, tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, in rank order.

    Args:
        world: the ranks; all of them call this.
        tensor: this rank's tensor, of equal shape and type on all ranks.

    Raises:
        OutOfStep: the ranks call with different arguments.
    """
    rank, size = world.place.rank, world.place.size
    agree(world, "all-gather", tensor)
    rows = tensor.new_empty((size, *tensor.shape))
    rows[rank] = tensor.detach()
    copy_along(world, schedule(rank, size), rows.view(-1), chunks=size)
    return list(rows)
