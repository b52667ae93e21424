"""Runs all-reduces by chosen algorithms, each for a range of tensor sizes."""

from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.collectives.algorithm_choice import AUTO, Crossovers, Measured
from samestep.ranks.collectives.algorithms import ALL_REDUCE, native
from samestep.ranks.collectives.shared_memory_world import OneHostWorld, on_one_host
from samestep.ranks.world.forwarding import RelayedWorld
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import NothingPending, Pending, World


def settled(world: World, algorithm: str) -> Crossovers:
    """Parse the algorithms to use; the result is the same on all ranks.

    Args:
        world: the ranks; all of them call this.
        algorithm: as `Crossovers.parse` reads it, or ``auto``: the measured choice in rank 0's cache.

    Raises:
        UsageError: the text is invalid, or rank 0 has no measurement; on all ranks.
    """
    if algorithm != AUTO:
        return Crossovers.parse(algorithm)
    measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
    return world.on_main(measured.load)


def by_algorithm(world: World, algorithm: str) -> World:
    """Return a world of the same ranks whose all-reduces use the given algorithms.

    A world of one rank is returned as it is.

    Args:
        world: the ranks; all of them call this.
        algorithm: as `settled` takes it.

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
    return ByAlgorithm(world, crossovers)


def overlaps_compute(world: World) -> bool:
    """Return whether an all-reduce that has begun makes progress while this rank computes."""
    return not isinstance(world, ByAlgorithm) or world.crossovers.names == {"native"}


class ByAlgorithm(RelayedWorld):
    """A world whose all-reduces use chosen algorithms.

    Args:
        inner: the world of the same ranks; it runs everything else.
        crossovers: the algorithms.
    """

    def __init__(self, inner: World, crossovers: Crossovers) -> None:
        super().__init__(inner)
        self.crossovers = crossovers

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        ALL_REDUCE[self.crossovers.at(tensor.nbytes)](self.inner, tensor, op)

    def all_reduce_later(self, tensor: Tensor) -> Pending:
        """See `World.all_reduce_later`; all algorithms but the back end's own run to the end here."""
        if self.crossovers.at(tensor.nbytes) == "native":
            return native(self.inner).all_reduce_later(tensor)
        self.all_reduce(tensor)
        return NothingPending()
