"""Makes a team of the ranks that a launcher has started: rank 0 runs the script, the others are helpers.

On one host's CPUs they share memory, as helpers do that the main rank has started. Otherwise messages go by
connections to the main rank, and tensors by the back ends of the process group.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor

from samestep.autopilot.helpers.messages import Line, LineOfHelper
from samestep.autopilot.helpers.network_line import NetworkHelperLine, NetworkMainLine
from samestep.autopilot.helpers.team import TeamMemory, TeamWorld
from samestep.base.errors import PeerLost
from samestep.ranks.collectives.call_signature import signature
from samestep.ranks.collectives.direct import low_latency
from samestep.ranks.collectives.peer_connections import connect_to_main
from samestep.ranks.collectives.semaphores import own_process
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World

T = TypeVar("T")
_NOTHING = torch.empty(0, device="cpu")


class NetworkTeamWorld(RelayedWorld):
    """World of a team whose ranks compare their calls before each collective, by their lines."""

    def __init__(self, inner: World, line: NetworkMainLine | NetworkHelperLine) -> None:
        super().__init__(inner)
        self._line = line

    @contextmanager
    def _together(self, call: str, tensor: Tensor = _NOTHING) -> Iterator[None]:
        """Run the block on all ranks, or raise `OtherRankFailedError` on all of them."""
        self._line.agree(signature(self.place.rank, call, tensor))
        try:
            yield
        except RuntimeError as error:  # of a back end: there is no other type for it
            raise PeerLost(str(error)) from error

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        with self._together(f"all_reduce({op})", tensor):
            self.inner.all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`."""
        self.all_reduce(tensor)
        return CompletedWork()

    def average(self, tensor: Tensor) -> None:
        """See `TeamWorld.average`."""
        with self._together("average", tensor):
            self.inner.average_later(tensor).wait()

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`."""
        self.average(tensor)
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        with self._together(f"broadcast from {src}", tensor):
            self.inner.broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        with self._together("all_gather", tensor):
            return self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self._line.agree(signature(self.place.rank, "barrier", _NOTHING))

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`."""
        with self._together(f"broadcast_object from {src}"):
            return self.inner.broadcast_object(value, src)

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`."""
        with self._together("all_gather_objects"):
            return self.inner.all_gather_objects(value)

    def end_check(self) -> None:
        """See `TeamWorld.end_check`."""
        self._line.agree(signature(self.place.rank, "the end of a check", _NOTHING))

    def fail(self) -> None:
        """See `TeamWorld.fail`."""
        self._line.agree(signature(self.place.rank, "nothing, because it has failed", _NOTHING))


class JoinedTeam:
    """The main rank's team of ranks that a launcher has started; they cannot be started again."""

    def __init__(self, world: TeamWorld, line: Line, *, shares_memory: bool) -> None:
        self.size, self.shares_memory = world.place.size, shares_memory
        self._ranks: tuple[TeamWorld, Line] | None = (world, line)

    def start(self) -> tuple[TeamWorld, Line]:
        """See `Team.start`."""
        if self._ranks is None:
            raise PeerLost("the launcher's workers cannot be started again")
        return self._ranks

    def are_alive(self) -> bool:
        """See `Team.are_alive`; the next exchange with the ranks finds out."""
        return True

    def stop(self) -> None:
        """See `Team.stop`."""
        if self._ranks is not None and isinstance(self._ranks[1], NetworkMainLine):
            self._ranks[1].close()
        self._ranks = None

    def close(self) -> None:
        """See `Team.close`; a team in memory ends with the main rank's process."""
        self.stop()


def main_rank(world: World, *, timeout_s: float, threads: int, may_share_memory: bool = True) -> JoinedTeam:
    """Make the team of all ranks, of which this is the main rank; the others call `helper_rank`."""
    memory = _new_memory(world, timeout_s=timeout_s, threads=threads) if may_share_memory else None
    memory = world.broadcast_object(memory)
    reached = world.all_gather_objects((memory is not None, own_process()))
    if memory is not None and all(is_reached for is_reached, _ in reached):
        in_memory, line = memory.main_rank([process for _, (process, _) in reached[1:]])
        return JoinedTeam(in_memory, line, shares_memory=True)
    if memory is not None:
        memory.close()
    near = low_latency(world)
    sockets, key = connect_to_main(world)
    network_line = NetworkMainLine(near, sockets, key, timeout_s=timeout_s)
    return JoinedTeam(NetworkTeamWorld(near, network_line), network_line, shares_memory=False)


def helper_rank(world: World) -> tuple[TeamWorld, LineOfHelper]:
    """Make the team of all ranks, of which this is a helper; see `main_rank`."""
    memory: TeamMemory | None = world.broadcast_object(None)
    ranks = None
    if memory is not None:
        with suppress(OSError):  # another host, or a container of its own
            ranks = memory.helper(world.place.rank)
    reached = world.all_gather_objects((ranks is not None, own_process()))
    if ranks is not None and all(is_reached for is_reached, _ in reached):
        return ranks
    near = low_latency(world)
    sockets, key = connect_to_main(world)
    line = NetworkHelperLine(near, sockets[0], key)
    return NetworkTeamWorld(near, line), line


def _new_memory(world: World, *, timeout_s: float, threads: int) -> TeamMemory | None:
    """Return memory for the ranks of one host that compute on CPUs; None for others, and without any."""
    if world.device.type != "cpu" or world.place.nodes > 1 or not hasattr(os, "memfd_create"):
        return None
    try:
        return TeamMemory.new(world.place.size, timeout_s=timeout_s, threads=threads)
    except OSError:
        return None
