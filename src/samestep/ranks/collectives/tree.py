"""All-reduce on a binomial tree: a reduce to rank 0, and a broadcast from it (N = 6).

::

    step 0    0 < 1    2 < 3    4 < 5
    step 1    0 <----- 2        4
    step 2    0 <-------------- 4
    step 3    0 --------------> 4
    step 4    0 -----> 2        4
    step 5    0 > 1    2 > 3    4 > 5

Cost: 2L steps of the whole tensor, L = ceil(log2 N); rank 0 sends it L times. It is the fastest for
tensors so small that only steps count, where N is no power of two.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005.
"""

from samestep.ranks.collectives import broadcast, naive, reduce
from samestep.ranks.collectives.all_reduce import AllReduce
from samestep.ranks.collectives.cost_model import Cost, doublings


def cost(size: int) -> Cost:
    """Return the cost on `size` ranks."""
    steps = doublings(size)
    return Cost(steps=2 * steps, path=2 * steps, sent=steps)


TREE = AllReduce(
    name="tree",
    chunks=lambda _: 1,
    combine=reduce.schedule,
    owned=naive.owned,
    copy=broadcast.tree,
    cost=cost,
)
