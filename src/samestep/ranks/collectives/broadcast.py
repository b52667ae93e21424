"""Broadcast: every rank gets the tensor of one rank.

On a binomial tree, a reduce in reverse: each rank that has the tensor forwards it, to the farthest rank first
(N = 6)::

    step 0    0 --------------> 4
    step 1    0 -----> 2        4
    step 2    0 > 1    2 > 3    4 > 5

Cost: L = ceil(log2 N) steps of the whole tensor, one after another; the root sends it L times.

By a scatter and an all-gather: the root sends a part to each rank, and the parts travel along a ring. That
takes L + N-1 steps, but 2(N-1)/N of the tensor one after another instead of L tensors: it is faster for large
tensors on three ranks or more.

Source: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH,
2005; the second one: M. Barnett and others: Interprocessor collective communication library, 1994.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from samestep.base.renamed import renamed_arguments
from samestep.ranks.collectives import all_gather, reduce, scatter
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import Cost, CostModel, doublings
from samestep.ranks.collectives.executor import copy_along, flattened, put_back
from samestep.ranks.collectives.schedule import Schedule, backwards, rerooted
from samestep.ranks.world.operation import refuse_root
from samestep.ranks.world.protocol import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A broadcast algorithm. Its functions take a rank and the number of ranks, or only the latter.

    Args:
        name: of the algorithm.
        chunks: the number of chunks of a tensor.
        schedule: the hops of a rank, from rank 0.
        cost: of these hops.
    """

    name: str
    chunks: Callable[[int], int]
    schedule: Callable[[int, int], Schedule]
    cost: CostModel

    @renamed_arguments(source="src")
    def __call__(self, world: World, tensor: Tensor, src: int = 0) -> None:
        """Overwrite `tensor` on every rank with that of rank `src`.

        Args:
            world: the ranks; all of them call this.
            tensor: of equal shape and type on all ranks.
            src: the rank whose tensor all get.

        Raises:
            OutOfStep: the ranks call with different arguments.
            UsageError: there is no rank `src`.
        """
        rank, size = world.place.rank, world.place.size
        refuse_root(src, size)
        agree(world, f"broadcast from rank {src} by {self.name}", tensor)
        flat = flattened(tensor)
        hops = rerooted(src, size, self.schedule((rank - src) % size, size))
        copy_along(world, hops, flat, chunks=self.chunks(size))
        if rank != src:
            put_back(flat, tensor)


def tree(rank: int, size: int) -> Schedule:
    """Return the hops of one rank, from rank 0; there is one chunk."""
    return backwards(reduce.schedule(rank, size))


def tree_cost(size: int) -> Cost:
    """Return the cost of the tree on `size` ranks."""
    steps = doublings(size)
    return Cost(steps=steps, path=steps, sent=steps)


def in_parts(rank: int, size: int) -> Schedule:
    """Return the hops of one rank: a scatter from rank 0, and an all-gather; there is one chunk per rank."""
    return scatter.schedule(rank, size) + all_gather.schedule(rank, size)


def in_parts_cost(size: int) -> Cost:
    """Return the cost of scatter and all-gather on `size` ranks."""
    share = 2 * (size - 1) / size
    return Cost(steps=doublings(size) + size - 1, path=share, sent=share)


TREE = Broadcast(name="tree", chunks=lambda _: 1, schedule=tree, cost=tree_cost)
SCATTER_ALL_GATHER = Broadcast(
    name="scatter_all_gather", chunks=lambda size: size, schedule=in_parts, cost=in_parts_cost
)
