"""Scatter: each rank gets one part of one rank's tensor.

On a binomial tree, a gather in reverse: each rank that has parts of others forwards half of them (N = 6)::

    step 0    0 -(4,5)---------------> 4
    step 1    0 -(2,3)---> 2           4
    step 2    0 -(1)> 1    2 -(3)> 3   4 -(5)> 5

Cost: ceil(log2 N) steps; the root sends the (N-1)/N of its tensor of the other ranks.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.renamed import renamed_arguments
from samestep.ranks.collectives import gather
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost, doublings
from samestep.ranks.collectives.executor import copy_along, flattened
from samestep.ranks.collectives.schedule import Schedule, backwards, rerooted
from samestep.ranks.world.operation import refuse_root
from samestep.ranks.world.protocol import World


def schedule(rank: int, size: int) -> Schedule:
    """Return the hops of one rank, from rank 0; there is one chunk per rank."""
    return backwards(gather.schedule(rank, size))


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    return Cost(steps=doublings(size), path=(size - 1) / size, sent=(size - 1) / size)


@renamed_arguments(source="src")
def scatter(world: World, rows: Tensor, src: int = 0) -> Tensor:
    """Return this rank's row of the tensor of rank `src`.

    Args:
        world: the ranks; all of them call this.
        rows: of equal shape and type on all ranks, with one row per rank; only those of `src` are read.
        src: the rank whose rows are sent.

    Raises:
        OutOfStep: the ranks call with different arguments.
        UsageError: there is not one row per rank, or no rank `src`.
    """
    rank, size = world.place.rank, world.place.size
    refuse_root(src, size)
    agree(world, f"scatter from rank {src}", rows)
    one_row_each(rows, size)
    flat = flattened(rows) if rank == src else rows.new_empty(rows.numel())
    hops = rerooted(src, size, schedule((rank - src) % size, size), chunks_too=True)
    copy_along(world, hops, flat, chunks=size)
    return flat.view(rows.shape)[rank].clone()


def one_row_each(rows: Tensor, size: int) -> None:
    """Check that a tensor has one row for each of `size` ranks.

    Raises:
        UsageError: it does not.
    """
    if not rows.dim() or len(rows) != size:
        raise UsageError(
            f"a tensor of shape {list(rows.shape)} does not have one row for each of {size} ranks. Make its "
            f"first dimension {size}."
        )
