"""All-reduce: every rank gets the reduction of all ranks' tensors.

Every algorithm here has two halves. The first reduces each chunk to one rank, its owner. The second copies
each chunk from its owner to all ranks. Hence all ranks have equal bits, whatever the order of summation.

======== ================================= =========================== =======================================
name     halves                            steps, volume of each rank  the fastest for
======== ================================= =========================== =======================================
`NAIVE`  through rank 0, one by one        2(N-1), up to N-1 tensors   none; it sums in rank order
`TREE`   reduce and broadcast on a tree    2L, up to L tensors         small tensors, N no power of two
`RING`   reduce-scatter and all-gather     2(N-1), 2(N-1)/N tensors    large tensors
======== ================================= =========================== =======================================

L is log2 N, rounded up. A well-known mistake sends whole tensors along the ring instead of chunks: N/2 times
the bytes, and each rank sums in another order. `halving_doubling` has the fourth algorithm, and
``docs/lab/collectives`` a page for each. Sources: see `ring` and `rooted_collectives`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.shared_memory import bounds
from samestep.ranks.world.operation import (
    Op,
    check_operation,
    finish,
    flattened,
    headroom,
    put_back,
)
from samestep.ranks.world.protocol import World
from samestep_lab.collectives import ring
from samestep_lab.collectives.executor import Execution, accumulator
from samestep_lab.collectives.rooted_collectives import (
    broadcast_schedule,
    naive_broadcast_schedule,
    naive_reduce_schedule,
    reduce_schedule,
)
from samestep_lab.collectives.schedule import Chunks, Hop, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """An all-reduce algorithm. Its functions take a rank and the number of ranks, or only the latter."""

    name: str  # name of the algorithm
    chunks: Callable[[int], int]  # number of chunks of a tensor
    combine: Callable[[int, int], Schedule]  # hops of the first half
    owned: Callable[[int, int], Chunks]  # chunks that are complete on a rank after the first half
    copy: Callable[[int, int], Schedule]  # hops of the second half

    def __call__(self, world: World, tensor: Tensor, op: Op = "sum") -> None:
        """Reduce `tensor`, of equal shape and type on all ranks, in place; all ranks call this.

        The result has equal bits on every rank.

        Raises:
            OutOfStep: the ranks call with different arguments.
            UsageError: the operation is not defined for the type.
        """
        rank, size = world.place.rank, world.place.size
        agree(world, f"all-reduce {op} by {self.name}", tensor)
        check_operation(op, tensor.dtype)
        chunks = self.chunks(size)
        flat, divisor = flattened(tensor), headroom(op, tensor.dtype, size)
        total = accumulator(flat, divisor)
        combine, copy = _hops(self, rank, size)
        execution = Execution(world, flat, total, chunks=chunks, combine=combine, copy=copy)
        execution.combine(op)
        edges = bounds(flat.numel(), chunks)
        for chunk in self.owned(rank, size):
            part = slice(edges[chunk], edges[chunk + 1])
            finish(total[part], op, size, divisor)
            if total is not flat:
                flat[part] = total[part]
        execution.copy()
        execution.end()
        put_back(flat, tensor)


@functools.lru_cache(maxsize=256)
def _hops(algorithm: AllReduce, rank: int, size: int) -> tuple[tuple[Hop, ...], tuple[Hop, ...]]:
    """Return the hops of both halves; every training step has the same."""
    return tuple(algorithm.combine(rank, size)), tuple(algorithm.copy(rank, size))


def _owned_by_rank_0(rank: int, size: int) -> Chunks:  # noqa: ARG001 - the signature of all algorithms
    return () if rank else (0,)


NAIVE = AllReduce(
    name="naive",
    chunks=lambda _: 1,
    combine=naive_reduce_schedule,
    owned=_owned_by_rank_0,
    copy=naive_broadcast_schedule,
)
TREE = AllReduce(
    name="tree",
    chunks=lambda _: 1,
    combine=reduce_schedule,
    owned=_owned_by_rank_0,
    copy=broadcast_schedule,
)
RING = AllReduce(
    name="ring",
    chunks=lambda size: size,
    combine=ring.reduce_scatter_schedule,
    owned=lambda rank, _: (rank,),
    copy=ring.all_gather_schedule,
)
