"""All-reduce on a ring: a reduce-scatter and an all-gather (N = 4).

::

    chunk sent by    rank 0  1  2  3
    step 0  add           3  0  1  2
    step 1  add           2  3  0  1
    step 2  add           1  2  3  0      now rank r has all of chunk r
    step 3  copy          0  1  2  3
    step 4  copy          3  0  1  2
    step 5  copy          2  3  0  1

Cost: 2(N-1) steps; each rank sends 2(N-1)/N of the tensor, the lower bound for any N. It is the fastest for
large tensors. The well-known mistake sends whole tensors instead of chunks: N/2 times the bytes, and each
rank sums in another order.

Source: P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from samestep.ranks.collectives import all_gather, reduce_scatter
from samestep.ranks.collectives.all_reduce import AllReduce
from samestep.ranks.collectives.cost_model import Cost
from samestep.ranks.collectives.schedule import Chunks


def owned(rank: int, size: int) -> Chunks:  # noqa: ARG001 - the signature of all algorithms
    """Return the chunks that a rank owns: the one with its number."""
    return (rank,)


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    share = 2 * (size - 1) / size
    return Cost(steps=2 * (size - 1), path=share, sent=share)


RING = AllReduce(
    name="ring",
    chunks=lambda size: size,
    combine=reduce_scatter.schedule,
    owned=owned,
    copy=all_gather.schedule,
    cost=cost,
)
