"""All-reduce by way of one rank: what everybody writes first (N = 4).

::

    steps 0-2    0 < 1    0 < 2    0 < 3     rank 0 adds, in rank order
    steps 3-5    0 > 1    0 > 2    0 > 3     and sends the sum to each

Cost: 2(N-1) steps of the whole tensor, all through rank 0, which sends it N-1 times. It wins nowhere beyond
two ranks; it is what the others are measured against, and the one whose sum is made in rank order.

Source: nobody's; it is the definition.
"""

from samestep.collectives.all_reduce import AllReduce
from samestep.collectives.cost import Cost
from samestep.collectives.hop import Chunks, Hop, Schedule, backwards


def combine(rank: int, size: int) -> Schedule:
    """Return the hops of one rank: everything to rank 0."""
    if rank:
        return [Hop(to=0, send=(0,))]
    return [Hop(source=other, receive=(0,)) for other in range(1, size)]


def copy(rank: int, size: int) -> Schedule:
    """Return the hops of one rank: everything from rank 0."""
    return backwards(combine(rank, size))[::-1]


def owned(rank: int, size: int) -> Chunks:  # noqa: ARG001 - as all have it
    """Return the chunks that are complete on a rank before they are copied: all on rank 0."""
    return () if rank else (0,)


def cost(size: int) -> Cost:
    """Return the cost among `size` ranks."""
    return Cost(steps=2 * (size - 1), path=2 * (size - 1), sent=size - 1)


NAIVE = AllReduce(name="naive", chunks=lambda _: 1, combine=combine, owned=owned, copy=copy, cost=cost)
