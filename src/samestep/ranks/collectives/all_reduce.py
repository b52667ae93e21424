"""All-reduce: every rank gets the reduction of all ranks' tensors.

Every algorithm here has two halves. The first reduces each chunk to one rank, its owner. The second copies
each chunk from its owner to all ranks. Hence all ranks have equal bits, whatever the order of summation.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from samestep.ranks.collectives.arithmetic import accumulator, finish
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.cost_model import CostModel
from samestep.ranks.collectives.executor import Walk, flattened, put_back
from samestep.ranks.collectives.schedule import Chunks, Hop, Schedule, bounds
from samestep.ranks.world.operation import Op, headroom, refuse
from samestep.ranks.world.protocol import World


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """An all-reduce algorithm. Its functions take a rank and the number of ranks, or only the latter.

    Args:
        name: of the algorithm.
        chunks: the number of chunks of a tensor.
        combine: the hops of the first half.
        owned: the chunks that are complete on a rank after the first half.
        copy: the hops of the second half.
        cost: of both halves.
    """

    name: str
    chunks: Callable[[int], int]
    combine: Callable[[int, int], Schedule]
    owned: Callable[[int, int], Chunks]
    copy: Callable[[int, int], Schedule]
    cost: CostModel

    def __call__(self, world: World, tensor: Tensor, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place, to equal bits on every rank.

        Args:
            world: the ranks; all of them call this.
            tensor: of equal shape and type on all ranks.
            op: the operation.

        Raises:
            OutOfStep: the ranks call with different arguments.
            UsageError: the operation is not defined for the type.
        """
        rank, size = world.place.rank, world.place.size
        agree(world, f"all-reduce {op} by {self.name}", tensor)
        refuse(op, tensor.dtype)
        chunks = self.chunks(size)
        flat, divisor = flattened(tensor), headroom(op, tensor.dtype, size)
        total = accumulator(flat, divisor)
        combine, copy = _hops(self, rank, size)
        walk = Walk(world, flat, total, chunks=chunks, combine=combine, copy=copy)
        walk.combine(op)
        edges = bounds(flat.numel(), chunks)
        for chunk in self.owned(rank, size):
            own = slice(edges[chunk], edges[chunk + 1])
            finish(total[own], op, size, divisor)
            if total is not flat:
                flat[own] = total[own]
        walk.copy()
        walk.end()
        put_back(flat, tensor)


@functools.lru_cache(maxsize=256)
def _hops(algorithm: AllReduce, rank: int, size: int) -> tuple[tuple[Hop, ...], tuple[Hop, ...]]:
    """Return the hops of both halves; every training step has the same."""
    return tuple(algorithm.combine(rank, size)), tuple(algorithm.copy(rank, size))
