"""All-gather and reduce-scatter on a ring: each rank sends to the next, and receives from the previous one.

::

    all-gather, chunk sent by       rank 0  1  2  3      reduce-scatter      rank 0  1  2  3
    step 0                               0  1  2  3      (added on arrival)       3  0  1  2
    step 1                               3  0  1  2                               2  3  0  1
    step 2                               2  3  0  1                               1  2  3  0
    complete on                                                                   0  1  2  3

Cost: N-1 steps; each rank sends (N-1)/N of the tensor or the result, the lower bound.

Source: P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.world.operation import Op, check_operation, finish, flattened, headroom
from samestep.ranks.world.protocol import World
from samestep_lab.collectives.executor import accumulator, combine_along, copy_along
from samestep_lab.collectives.schedule import Hop, Schedule


def all_gather_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of an all-gather; chunk r is rank r's."""
    return _around(rank, size, first=rank)


def reduce_scatter_schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank of a reduce-scatter; chunk r becomes complete on rank r."""
    return _around(rank, size, first=rank - 1)


def all_gather(world: World, tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, of equal shape and type, in rank order; all ranks call this.

    Raises:
        OutOfStep: the ranks call with different arguments.
    """
    rank, size = world.place.rank, world.place.size
    agree(world, "all-gather", tensor)
    rows = tensor.new_empty((size, *tensor.shape))
    rows[rank] = tensor.detach()
    copy_along(world, all_gather_schedule(rank, size), rows.view(-1), chunks=size)
    return list(rows)


def reduce_scatter(world: World, rows: Tensor, op: Op = "sum") -> Tensor:
    """Return this rank's row of the reduction of all ranks' tensors; all ranks call this.

    `rows` has one row per rank, has equal shape and type on all ranks, and is unchanged.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is not one row per rank, or the operation is not defined for the type.
    """
    rank, size = world.place.rank, world.place.size
    agree(world, f"reduce-scatter {op}", rows)
    check_operation(op, rows.dtype)
    check_rows(rows, size)
    flat, divisor = flattened(rows), headroom(op, rows.dtype, size)
    total = accumulator(flat, divisor)
    if total is flat:
        total = flat.clone()
    combine_along(world, reduce_scatter_schedule(rank, size), total, flat, op, chunks=size)
    row = total.view(rows.shape)[rank]
    finish(row, op, size, divisor)
    return row.to(rows.dtype, copy=True)


def check_rows(rows: Tensor, size: int) -> None:
    """Refuse a tensor that does not have one row for each of `size` ranks.

    Raises:
        UsageError: it does not.
    """
    if not rows.dim() or len(rows) != size:
        raise UsageError(
            f"a tensor of shape {list(rows.shape)} does not have one row for each of {size} ranks. Make its "
            f"first dimension {size}."
        )


def _around(rank: int, size: int, *, first: int) -> Schedule:
    """Return the hops of a rank that sends chunk `first`, and then each time the chunk it received last."""
    return [
        Hop(
            to=(rank + 1) % size,
            send=((first - step) % size,),
            source=(rank - 1) % size,
            receive=((first - step - 1) % size,),
        )
        for step in range(size - 1)
    ]
