"""Lists the ways of a collective by name: the back end's own, direct connections, and shared memory.

`native` calls the back end, `direct` uses direct connections between processes with Gloo, and `shared_memory`
the shared memory of one host, which takes a world of `on_one_host`. The other two accept such a world too.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.collectives.direct import RANKS, DirectWorld, by_connections
from samestep.ranks.collectives.shared_memory import OneHostWorld
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import World

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
            "samestep.ranks.collectives.shared_memory.on_one_host(world), "
            "which these ranks cannot make: they share no memory. Choose another algorithm."
        )
    return world


def direct(world: World) -> DirectWorld:
    """Return the world of the same ranks with direct connections; all ranks call this.

    Raises:
        UsageError: they cannot have any.
    """
    connected = world if isinstance(world, DirectWorld) else by_connections(native(world))
    if not isinstance(connected, DirectWorld):
        raise UsageError(
            f"direct takes 2 to {RANKS} processes that Gloo connects, with tensors on the CPU. "
            "Choose another algorithm."
        )
    return connected


ALL_REDUCE: Mapping[str, ToAll] = {
    "native": lambda world, tensor, op: native(world).all_reduce(tensor, op=op),
    "direct": lambda world, tensor, op: direct(world).reduce_directly(tensor, op),
    "shared_memory": lambda world, tensor, op: shared_memory(world).all_reduce(tensor, op=op),
}
"""Each takes a world, the tensor to change, and an operation."""
BROADCAST: Mapping[str, FromOne] = {
    "native": lambda world, tensor, src: native(world).broadcast(tensor, src),
    "shared_memory": lambda world, tensor, src: shared_memory(world).broadcast(tensor, src),
}
"""Each takes a world, the tensor to change, and the source rank."""
ALL_GATHER: Mapping[str, Gathered] = {
    "native": lambda world, tensor: native(world).all_gather(tensor),
    "direct": lambda world, tensor: direct(world).gather_directly(tensor),
    "shared_memory": lambda world, tensor: shared_memory(world).all_gather(tensor),
}
"""Each takes a world and a tensor, and returns the tensors of all ranks."""
