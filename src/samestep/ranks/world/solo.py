"""Implements a world of one rank: every collective is the identity."""

from typing import TypeVar

import torch
from torch import Tensor

from samestep.base.errors import WorldError
from samestep.base.place import Place
from samestep.ranks.world.operation import Op, check_operation
from samestep.ranks.world.protocol import CompletedWork, DerivedWorld, Work

T = TypeVar("T")


class SoloWorld(DerivedWorld):
    """World of a job with one rank. It has no process group and no cost."""

    def __init__(self, *, device: torch.device | str = "cpu", place: Place | None = None) -> None:
        self.place = place if place is not None else Place()
        if self.place.size != 1:
            raise WorldError(f"a SoloWorld cannot stand for {self.place.describe()}; join the job instead")
        self.device = torch.device(device)

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`; there is no other rank to wait for."""
        return 0.0

    def send(self, tensor: Tensor, dst: int) -> None:  # noqa: ARG002 - the protocol's signature
        """Refuse: there is no rank to send to."""
        raise WorldError(f"cannot send to rank {dst}: this is a world of one")

    def recv(self, tensor: Tensor, src: int) -> None:  # noqa: ARG002 - the protocol's signature
        """Refuse: there is no rank to receive from."""
        raise WorldError(f"cannot receive from rank {src}: this is a world of one")

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """Refuse to send or receive: there is no other rank."""
        if send is not None:
            raise WorldError(f"cannot send to rank {dst}: this is a world of one")
        if receive is not None:
            raise WorldError(f"cannot receive from rank {src}: this is a world of one")
        return CompletedWork()

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Leave `tensor` as it is."""
        check_operation(op, tensor.dtype)

    def all_reduce_later(self, tensor: Tensor) -> Work:  # noqa: ARG002 - the protocol's signature
        """Leave `tensor` as it is."""
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Leave `tensor` as it is."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return a list of one tensor, a copy of `tensor`."""
        return [tensor.clone()]

    def barrier(self) -> None:
        """Return at once."""

    def broadcast_object(self, value: T, src: int = 0) -> T:  # noqa: ARG002 - the protocol's signature
        """Return `value`."""
        return value

    def all_gather_objects(self, value: T) -> list[T]:
        """Return a list that contains only `value`."""
        return [value]

    def close(self) -> None:
        """Do nothing: this world has no open resources."""
