"""Reduce-scatter: each rank gets one part of the reduced tensor.

On a ring, each rank adds its own chunk to the one it received last, and forwards the sum (N = 4)::

    chunk sent by    rank 0  1  2  3
    step 0                3  0  1  2
    step 1                2  3  0  1
    step 2                1  2  3  0
    complete on           0  1  2  3

Cost: N-1 steps; each rank sends (N-1)/N of the tensor, the lower bound.

Source: P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from torch import Tensor

from samestep.ranks.collectives.arithmetic import accumulator, finish
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost
from samestep.ranks.collectives.executor import combine_along, flattened
from samestep.ranks.collectives.scatter import one_row_each
from samestep.ranks.collectives.schedule import Hop, Schedule
from samestep.ranks.world.operation import Op, headroom, refuse
from samestep.ranks.world.protocol import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank; there is one chunk per rank."""
    return [
        Hop(
            to=(rank + 1) % size,
            send=((rank - step - 1) % size,),
            source=(rank - 1) % size,
            receive=((rank - step - 2) % size,),
        )
        for step in range(size - 1)
    ]


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    return Cost(steps=size - 1, path=(size - 1) / size, sent=(size - 1) / size)


def reduce_scatter(world: World, rows: Tensor, op: Op = "sum") -> Tensor:
    """Return this rank's row of the reduction of all ranks' tensors.

    Args:
        world: the ranks; all of them call this.
        rows: of equal shape and type on all ranks, with one row per rank; unchanged.
        op: the operation.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is not one row per rank, or the operation is not defined for the type.
    """
    rank, size = world.place.rank, world.place.size
    agree(world, f"reduce-scatter {op}", rows)
    refuse(op, rows.dtype)
    one_row_each(rows, size)
    flat, divisor = flattened(rows), headroom(op, rows.dtype, size)
    total = accumulator(flat, divisor)
    if total is flat:
        total = flat.clone()
    combine_along(world, schedule(rank, size), total, flat, op, chunks=size)
    row = total.view(rows.shape)[rank]
    finish(row, op, size, divisor)
    return row.to(rows.dtype, copy=True)
