"""Lists the algorithms of each collective by name, samestep's own ways among them.

All take a world of `on_one_host` too, whose ranks compare their calls without messages.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from samestep.bench import measurement
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World
from samestep_lab.collectives import ring, rooted_collectives
from samestep_lab.collectives.all_reduce import NAIVE, RING, TREE
from samestep_lab.collectives.halving_doubling import HALVING_DOUBLING
from samestep_lab.collectives.rooted_collectives import (
    NAIVE_BROADCAST,
    SCATTER_ALL_GATHER_BROADCAST,
    TREE_BROADCAST,
)

ToAll: TypeAlias = Callable[[World, Tensor, Op], None]

ALL_REDUCE: Mapping[str, ToAll] = {
    **{each.name: each for each in (NAIVE, TREE, RING, HALVING_DOUBLING)},
    **measurement.ALL_REDUCE,
}
"""Each takes a world, the tensor to change, and an operation."""
BROADCAST: Mapping[str, Callable[[World, Tensor, int], None]] = {
    **{each.name: each for each in (NAIVE_BROADCAST, TREE_BROADCAST, SCATTER_ALL_GATHER_BROADCAST)},
    **measurement.BROADCAST,
}
"""Each takes a world, the tensor to change, and the source rank."""
ALL_GATHER: Mapping[str, Callable[[World, Tensor], list[Tensor]]] = {
    "ring": ring.all_gather,
    **measurement.ALL_GATHER,
}
"""Each takes a world and a tensor, and returns the tensors of all ranks."""
REDUCE: Mapping[str, Callable[[World, Tensor, Op, int], None]] = {"tree": rooted_collectives.reduce}
"""Each takes a world, the tensor to change, an operation, and the rank whose tensor changes."""
REDUCE_SCATTER: Mapping[str, Callable[[World, Tensor, Op], Tensor]] = {"ring": ring.reduce_scatter}
"""Each takes a world, a tensor of one row per rank, and an operation; returns this rank's row."""
GATHER: Mapping[str, Callable[[World, Tensor, int], list[Tensor] | None]] = {
    "tree": rooted_collectives.gather
}
"""Each takes a world, a tensor, and the destination rank."""
SCATTER: Mapping[str, Callable[[World, Tensor, int], Tensor]] = {"tree": rooted_collectives.scatter}
"""Each takes a world, a tensor of one row per rank, and the source rank."""


class ByAlgorithm(RelayedWorld):
    """World whose all-reduces use one algorithm; `inner` runs everything else.

    ``samestep.replicate(model, ByAlgorithm(world, "ring"), sync="bucketed")`` trains with it.
    """

    def __init__(self, inner: World, algorithm: str) -> None:
        super().__init__(inner)
        self._all_reduce = ALL_REDUCE[algorithm]

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        self._all_reduce(self.inner, tensor, op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; it runs to the end here."""
        self.all_reduce(tensor)
        return CompletedWork()
