"""Registers the algorithms of each collective by name.

Two of them are no schedules: `native` calls the back end's own collective, and `shared_memory` uses the
shared memory of one host, which takes a world of `on_one_host`. All other algorithms accept such a world too.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.collectives import all_gather, broadcast, gather, naive, reduce, reduce_scatter, scatter
from samestep.ranks.collectives.broadcast import Broadcast
from samestep.ranks.collectives.cost_model import Cost, CostModel
from samestep.ranks.collectives.halving_doubling import HALVING_DOUBLING
from samestep.ranks.collectives.naive import NAIVE
from samestep.ranks.collectives.ring import RING
from samestep.ranks.collectives.shared_memory_world import OneHostWorld
from samestep.ranks.collectives.tree import TREE
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import World

ToAll: TypeAlias = Callable[[World, Tensor, Op], None]
FromOne: TypeAlias = Callable[[World, Tensor, int], None]
Gathered: TypeAlias = Callable[[World, Tensor], list[Tensor]]


def native(world: World) -> World:
    """Return the world whose collectives are those of the back end."""
    return world.inner if isinstance(world, OneHostWorld) else world


def shared_memory(world: World) -> World:
    """Return `world` if its collectives use shared memory.

    Raises:
        UsageError: they do not.
    """
    if not isinstance(world, OneHostWorld):
        raise UsageError(
            "shared_memory takes a world of "
            "samestep.ranks.collectives.shared_memory_world.on_one_host(world), "
            "which these ranks cannot make: they share no memory. Choose another algorithm."
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
"""Each takes a world, the tensor to change, and an operation."""

BROADCAST: Mapping[str, FromOne] = {
    "naive": _NAIVE_BROADCAST,
    "tree": broadcast.TREE,
    "scatter_all_gather": broadcast.SCATTER_ALL_GATHER,
    "native": lambda world, tensor, src: native(world).broadcast(tensor, src),
    "shared_memory": lambda world, tensor, src: shared_memory(world).broadcast(tensor, src),
}
"""Each takes a world, the tensor to change, and the source rank."""

ALL_GATHER: Mapping[str, Gathered] = {
    "ring": all_gather.all_gather,
    "native": lambda world, tensor: native(world).all_gather(tensor),
    "shared_memory": lambda world, tensor: shared_memory(world).all_gather(tensor),
}
"""Each takes a world and a tensor, and returns the tensors of all ranks."""

REDUCE: Mapping[str, Callable[[World, Tensor, Op, int], None]] = {"tree": reduce.reduce}
"""Each takes a world, the tensor to change, an operation, and the rank whose tensor changes."""

REDUCE_SCATTER: Mapping[str, Callable[[World, Tensor, Op], Tensor]] = {"ring": reduce_scatter.reduce_scatter}
"""Each takes a world, a tensor of one row per rank, and an operation; returns this rank's row."""

GATHER: Mapping[str, Callable[[World, Tensor, int], list[Tensor] | None]] = {"tree": gather.gather}
"""Each takes a world, a tensor, and the destination rank."""

SCATTER: Mapping[str, Callable[[World, Tensor, int], Tensor]] = {"tree": scatter.scatter}
"""Each takes a world, a tensor of one row per rank, and the source rank."""

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
"""The cost of each schedule, by collective and algorithm."""
