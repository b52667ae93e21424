"""Makes some ranks of a world a world of their own, without any setup.

Its ranks are numbered from 0 in the given order. Its collectives are schedules of messages over the given
world, in which only the members take part.
"""

import pickle
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import CompletedWork, DerivedWorld, Work, World
from samestep_lab.collectives.all_reduce import RING, TREE
from samestep_lab.collectives.ring import all_gather
from samestep_lab.collectives.rooted_collectives import TREE_BROADCAST

T = TypeVar("T")
SMALL = 1 << 14
"""Bytes up to which the tree, with fewer steps, is faster than the ring, with fewer bytes."""


class Subgroup(DerivedWorld):
    """Some ranks of a world.

    Args:
        world: all ranks.
        ranks: the members' ranks in `world`, in the same order on all members.

    Raises:
        UsageError: a rank is not in `world` or given twice, or this rank is not a member.
    """

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        own, size = world.place.rank, world.place.size
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(size)) or own not in ranks:
            raise UsageError(
                f"rank {own} of {size} cannot make a subgroup of ranks {list(ranks)}. Give ranks of the "
                f"world, each once, and rank {own} among them."
            )
        self._world, self._ranks = world, tuple(ranks)
        self.device = world.device
        self.place = Place(
            rank=self._ranks.index(own), size=len(ranks), launcher=f"subgroup of {world.place.launcher}"
        )

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`."""
        return self._world.timeout_s

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self._world.send(tensor, self._ranks[dst])

    def recv(self, tensor: Tensor, src: int) -> None:
        """See `World.recv`."""
        self._world.recv(tensor, self._ranks[src])

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """See `World.exchange`."""
        return self._world.exchange(
            send,
            receive,
            dst=None if dst is None else self._ranks[dst],
            src=None if src is None else self._ranks[src],
        )

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        algorithm = TREE if tensor.nbytes <= SMALL else RING
        algorithm(self, tensor, op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; it runs to the end here."""
        self.all_reduce(tensor)
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        TREE_BROADCAST(self, tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        return all_gather(self, tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`; the value is pickled."""
        data = pickle.dumps(value) if self.place.rank == src else b""
        length = torch.tensor([len(data)], device=self.device)
        self.broadcast(length, src)
        packed = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if data:
            packed.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self.broadcast(packed, src)
        found: T = pickle.loads(bytes(packed.tolist()))
        return found

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`; the values are pickled."""
        return [self.broadcast_object(value, rank) for rank in range(self.place.size)]

    def close(self) -> None:
        """Do nothing; the world keeps its connections."""
