"""All-reduce by a reduce to rank 0 and a broadcast from it, without a tree (N = 4).

::

    steps 0-2    0 < 1    0 < 2    0 < 3     rank 0 adds, in rank order
    steps 3-5    0 > 1    0 > 2    0 > 3     and sends the sum to each rank

Cost: 2(N-1) steps of the whole tensor, all through rank 0, which sends it N-1 times. It is never the fastest
with more than two ranks. It is the baseline of the others, and the one that sums in rank order.

Source: none; it is the definition.
"""

from samestep.ranks.collectives.all_reduce import AllReduce
from samestep.ranks.collectives.cost_model import Cost
from samestep.ranks.collectives.schedule import Chunks, Hop, Schedule, backwards


def combine(rank: int, size: int) -> Schedule:
    """Return the hops of one rank to rank 0."""
    if rank:
        return [Hop(to=0, send=(0,))]
    return [Hop(source=other, receive=(0,)) for other in range(1, size)]


def copy(rank: int, size: int) -> Schedule:
    """Return the hops of one rank from rank 0."""
    return backwards(combine(rank, size))[::-1]


def owned(rank: int, size: int) -> Chunks:  # noqa: ARG001 - the signature of all algorithms
    """Return the chunks that a rank owns: all on rank 0."""
    return () if rank else (0,)


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    return Cost(steps=2 * (size - 1), path=2 * (size - 1), sent=size - 1)


NAIVE = AllReduce(name="naive", chunks=lambda _: 1, combine=combine, owned=owned, copy=copy, cost=cost)
