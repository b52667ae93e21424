"""A world whose all-reduces are made by algorithms of one's choice, each from a size on."""

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.collectives.algorithms import ALL_REDUCE, native
from samestep.collectives.crossovers import AUTO, Crossovers, Measured
from samestep.collectives.one_host import OneHostWorld, on_one_host
from samestep.world.operation import Op
from samestep.world.relayed import RelayedWorld
from samestep.world.world import NothingPending, Pending, World


def settled(world: World, algorithm: str) -> Crossovers:
    """Return the algorithms that a text means, the same on all ranks.

    Args:
        world: the ranks; all of them call this.
        algorithm: as `Crossovers.parse` reads it, or ``auto``: what rank 0 finds to be measured.

    Raises:
        UsageError: it is none, or nothing was measured; on all ranks.
    """
    if algorithm != AUTO:
        return Crossovers.parse(algorithm)
    measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
    return world.on_main(measured.load)


def by_algorithm(world: World, algorithm: str) -> World:
    """Return a world of the same ranks whose all-reduces are made by algorithms of choice.

    A world of one, which has nothing to exchange, stays as it is.

    Args:
        world: the ranks; all of them call this.
        algorithm: which, as `settled` takes it.

    Raises:
        UsageError: it is none, or the ranks cannot run it.
    """
    if world.place.size == 1:
        return world
    crossovers = settled(world, algorithm)
    if crossovers.names != {"native"}:
        world = on_one_host(world)  # where ranks agree on a schedule without messages
    if "shared_memory" in crossovers.names and not isinstance(world, OneHostWorld):
        raise UsageError(
            f"--algorithm {crossovers.text}: shared_memory is for processes of one Linux host that compute "
            "on its processors and share enough of its memory. Choose another one."
        )
    return ByAlgorithm(world, crossovers)


def works_beside(world: World) -> bool:
    """Return whether an all-reduce that has begun goes on by itself while this rank computes."""
    return not isinstance(world, ByAlgorithm) or world.crossovers.names == {"native"}


class ByAlgorithm(RelayedWorld):
    """The ranks of another world.

    Args:
        inner: does all but all-reduces.
        crossovers: what those are made by.
    """

    def __init__(self, inner: World, crossovers: Crossovers) -> None:
        super().__init__(inner)
        self.crossovers = crossovers

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        ALL_REDUCE[self.crossovers.at(tensor.nbytes)](self.inner, tensor, op)

    def all_reduce_later(self, tensor: Tensor) -> Pending:
        """See `World.all_reduce_later`; what is not the back end's own is done at once."""
        if self.crossovers.at(tensor.nbytes) == "native":
            return native(self.inner).all_reduce_later(tensor)
        self.all_reduce(tensor)
        return NothingPending()
