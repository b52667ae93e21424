"""Registers the algorithms of each collective by name, and runs all-reduces by chosen ones.

Three of them are no schedules: `native` calls the back end's own collective, `direct` uses direct connections
between processes with Gloo, and `shared_memory` the shared memory of one host, which takes a world of
`on_one_host`. All other algorithms accept such a world too.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.collectives import ring, rooted_collectives
from samestep.ranks.collectives.algorithm_choice import AUTO, Crossovers, Measured
from samestep.ranks.collectives.all_reduce import NAIVE, RING, TREE
from samestep.ranks.collectives.direct_world import RANKS, DirectWorld, by_connections
from samestep.ranks.collectives.halving_doubling import HALVING_DOUBLING
from samestep.ranks.collectives.rooted_collectives import (
    NAIVE_BROADCAST,
    SCATTER_ALL_GATHER_BROADCAST,
    TREE_BROADCAST,
)
from samestep.ranks.collectives.shared_memory_world import OneHostWorld, on_one_host
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World

ToAll: TypeAlias = Callable[[World, Tensor, Op], None]
FromOne: TypeAlias = Callable[[World, Tensor, int], None]
Gathered: TypeAlias = Callable[[World, Tensor], list[Tensor]]


def native(world: World) -> World:
    """Return the world whose collectives are those of the back end."""
    return world.inner if isinstance(world, OneHostWorld | DirectWorld) else world


def shared_memory(world: World) -> World:
    """Return `world` if its collectives use shared memory, or if it has one rank.

    Raises:
        UsageError: they do not.
    """
    if world.place.size > 1 and not isinstance(world, OneHostWorld):
        raise UsageError(
            "shared_memory takes a world of "
            "samestep.ranks.collectives.shared_memory_world.on_one_host(world), "
            "which these ranks cannot make: they share no memory. Choose another algorithm."
        )
    return world


def direct(world: World) -> DirectWorld:
    """Return the world of the same ranks with direct connections; all ranks call this.

    Raises:
        UsageError: they cannot have any.
    """
    found = world if isinstance(world, DirectWorld) else by_connections(native(world))
    if not isinstance(found, DirectWorld):
        raise UsageError(
            f"direct takes 2 to {RANKS} processes that Gloo connects, with tensors on the CPU. "
            "Choose another algorithm."
        )
    return found


_ALL_REDUCES = {each.name: each for each in (NAIVE, TREE, RING, HALVING_DOUBLING)}
_BROADCASTS = {each.name: each for each in (NAIVE_BROADCAST, TREE_BROADCAST, SCATTER_ALL_GATHER_BROADCAST)}

ALL_REDUCE: Mapping[str, ToAll] = {
    **_ALL_REDUCES,
    "native": lambda world, tensor, op: native(world).all_reduce(tensor, op=op),
    "direct": lambda world, tensor, op: direct(world).reduce_directly(tensor, op),
    "shared_memory": lambda world, tensor, op: shared_memory(world).all_reduce(tensor, op=op),
}
"""Each takes a world, the tensor to change, and an operation."""

BROADCAST: Mapping[str, FromOne] = {
    **_BROADCASTS,
    "native": lambda world, tensor, src: native(world).broadcast(tensor, src),
    "shared_memory": lambda world, tensor, src: shared_memory(world).broadcast(tensor, src),
}
"""Each takes a world, the tensor to change, and the source rank."""

ALL_GATHER: Mapping[str, Gathered] = {
    "ring": ring.all_gather,
    "native": lambda world, tensor: native(world).all_gather(tensor),
    "direct": lambda world, tensor: direct(world).gather_directly(tensor),
    "shared_memory": lambda world, tensor: shared_memory(world).all_gather(tensor),
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


def settled(world: World, algorithm: str) -> Crossovers:
    """Parse the algorithms to use; all ranks call this, and the result is the same on all of them.

    `algorithm` is as `Crossovers.parse` reads it, or ``auto``: the measured choice in rank 0's cache.

    Raises:
        UsageError: the text is invalid, or rank 0 has no measurement; on all ranks.
    """
    if algorithm != AUTO:
        return Crossovers.parse(algorithm)
    measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
    return world.on_main(measured.load)


def by_algorithm(world: World, algorithm: str) -> World:
    """Return a world of the same ranks whose all-reduces use the given algorithms; all ranks call this.

    A world of one rank is returned as it is. `algorithm` is as `settled` takes it.

    Raises:
        UsageError: `algorithm` is invalid, or these ranks cannot run it.
    """
    if world.place.size == 1:
        return world
    crossovers = settled(world, algorithm)
    if crossovers.names != {"native"}:
        world = on_one_host(world)  # compares call signatures without messages
    if "shared_memory" in crossovers.names and not isinstance(world, OneHostWorld):
        raise UsageError(
            f"--algorithm {crossovers.text}: shared_memory takes CPU processes of one Linux host "
            "with enough shared memory. Choose another algorithm."
        )
    if "direct" in crossovers.names:
        direct(world)
    return ByAlgorithm(world, crossovers)


def overlaps_compute(world: World) -> bool:
    """Return whether an all-reduce that has begun makes progress while this rank computes."""
    return not isinstance(world, ByAlgorithm) or world.crossovers.names == {"native"}


class ByAlgorithm(RelayedWorld):
    """World whose all-reduces use the algorithms of `crossovers`; `inner` runs everything else."""

    def __init__(self, inner: World, crossovers: Crossovers) -> None:
        super().__init__(inner)
        self.crossovers = crossovers

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        ALL_REDUCE[self.crossovers.at(tensor.nbytes)](self.inner, tensor, op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; all algorithms but the back end's own run to the end here."""
        if self.crossovers.at(tensor.nbytes) == "native":
            return native(self.inner).all_reduce_later(tensor)
        self.all_reduce(tensor)
        return CompletedWork()
