"""The algorithms of each collective, by name.

Two are no schedules: `native` is the back end's own, and `shared_memory` goes through the memory of a host
and takes a world of `on_one_host`. Such a world may be given to all of them.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.collectives import all_gather, broadcast, gather, naive, reduce, reduce_scatter, scatter
from samestep.collectives.broadcast import Broadcast
from samestep.collectives.cost import Cost, CostModel
from samestep.collectives.halving_doubling import HALVING_DOUBLING
from samestep.collectives.naive import NAIVE
from samestep.collectives.one_host import OneHostWorld
from samestep.collectives.ring import RING
from samestep.collectives.tree import TREE
from samestep.world.operation import Op
from samestep.world.world import World

ToAll: TypeAlias = Callable[[World, Tensor, Op], None]
FromOne: TypeAlias = Callable[[World, Tensor, int], None]
Gathered: TypeAlias = Callable[[World, Tensor], list[Tensor]]


def native(world: World) -> World:
    """Return the world whose collectives are the back end's own."""
    return world.inner if isinstance(world, OneHostWorld) else world


def shared_memory(world: World) -> World:
    """Return the world whose collectives go through memory that all ranks share.

    Raises:
        UsageError: there is none.
    """
    if not isinstance(world, OneHostWorld):
        raise UsageError(
            "shared_memory takes a world whose ranks share a host's memory: that of "
            "samestep.collectives.one_host.on_one_host(world), which these ranks do not have."
        )
    return world


def _cost_of_naive_broadcast(size: int) -> Cost:
    return Cost(steps=size - 1, path=size - 1, sent=size - 1)


_NAIVE_BROADCAST = Broadcast(
    name="naive", chunks=lambda _: 1, schedule=naive.copy, cost=_cost_of_naive_broadcast
)

ALL_REDUCE: Mapping[str, ToAll] = {
    "naive": NAIVE,
    "tree": TREE,
    "ring": RING,
    "halving_doubling": HALVING_DOUBLING,
    "native": lambda world, tensor, op: native(world).all_reduce(tensor, op=op),
    "shared_memory": lambda world, tensor, op: shared_memory(world).all_reduce(tensor, op=op),
}
"""Each takes a world, a tensor that it changes, and an operation."""

BROADCAST: Mapping[str, FromOne] = {
    "naive": _NAIVE_BROADCAST,
    "tree": broadcast.TREE,
    "scatter_all_gather": broadcast.SCATTER_ALL_GATHER,
    "native": lambda world, tensor, source: native(world).broadcast(tensor, source=source),
    "shared_memory": lambda world, tensor, source: shared_memory(world).broadcast(tensor, source=source),
}
"""Each takes a world, a tensor that it changes, and the rank that has what all get."""

ALL_GATHER: Mapping[str, Gathered] = {
    "ring": all_gather.all_gather,
    "native": lambda world, tensor: native(world).all_gather(tensor),
    "shared_memory": lambda world, tensor: shared_memory(world).all_gather(tensor),
}
"""Each takes a world and a tensor, and returns those of all ranks."""

REDUCE: Mapping[str, Callable[[World, Tensor, Op, int], None]] = {"tree": reduce.reduce}
"""Each takes a world, a tensor that it changes on one rank, an operation, and that rank."""

REDUCE_SCATTER: Mapping[str, Callable[[World, Tensor, Op], Tensor]] = {"ring": reduce_scatter.reduce_scatter}
"""Each takes a world, a tensor of one row for each rank, and an operation; returns this rank's row."""

GATHER: Mapping[str, Callable[[World, Tensor, int], list[Tensor] | None]] = {"tree": gather.gather}
"""Each takes a world, a tensor, and the rank that gets those of all."""

SCATTER: Mapping[str, Callable[[World, Tensor, int], Tensor]] = {"tree": scatter.scatter}
"""Each takes a world, a tensor of one row for each rank, and the rank whose rows they are."""

COSTS: Mapping[str, Mapping[str, CostModel]] = {
    "all_reduce": {each.name: each.cost for each in (NAIVE, TREE, RING, HALVING_DOUBLING)},
    "broadcast": {
        each.name: each.cost for each in (_NAIVE_BROADCAST, broadcast.TREE, broadcast.SCATTER_ALL_GATHER)
    },
    "all_gather": {"ring": all_gather.cost},
    "reduce": {"tree": reduce.cost},
    "reduce_scatter": {"ring": reduce_scatter.cost},
    "gather": {"tree": gather.cost},
    "scatter": {"tree": scatter.cost},
}
"""What each algorithm that is a schedule costs, by collective and name."""
