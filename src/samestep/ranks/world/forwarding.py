"""Provides a world that forwards every call to another one; subclasses override the calls that differ."""

from typing import TypeVar

from torch import Tensor

from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import DerivedWorld, Pending, World

T = TypeVar("T")


class RelayedWorld(DerivedWorld):
    """World that forwards every call to another one.

    Args:
        inner: the world that runs the calls.
    """

    def __init__(self, inner: World) -> None:
        self.inner = inner
        self.place, self.device = inner.place, inner.device

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`."""
        return self.inner.timeout_s

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self.inner.send(tensor, dst)

    def recv(self, tensor: Tensor, src: int) -> None:
        """See `World.recv`."""
        self.inner.recv(tensor, src)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Pending:
        """See `World.exchange`."""
        return self.inner.exchange(send, receive, dst=dst, src=src)

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        self.inner.all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Pending:
        """See `World.all_reduce_later`."""
        return self.inner.all_reduce_later(tensor)

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        self.inner.broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        return self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self.inner.barrier()

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`."""
        return self.inner.broadcast_object(value, src)

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`."""
        return self.inner.all_gather_objects(value)

    def close(self) -> None:
        """See `World.close`."""
        self.inner.close()
