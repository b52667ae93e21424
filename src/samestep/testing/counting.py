"""Counts the bytes that a rank sends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.ranks.world.forwarding import RelayedWorld
from samestep.ranks.world.protocol import Pending, World


class CountingWorld(RelayedWorld):
    """A world that counts the messages of its rank by `send` and `exchange`.

    Args:
        inner: the world that carries them.
    """

    def __init__(self, inner: World) -> None:
        super().__init__(inner)
        self.sent = 0
        """Bytes."""
        self.messages = 0

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self._count(tensor)
        super().send(tensor, dst)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Pending:
        """See `World.exchange`."""
        if send is not None:
            self._count(send)
        return super().exchange(send, receive, dst=dst, src=src)

    def _count(self, tensor: Tensor) -> None:
        self.sent += tensor.nbytes
        self.messages += 1


@contextmanager
def counted_sends() -> Iterator[list[int]]:
    """Return a context manager that collects the bytes of every ``torch.distributed`` point-to-point send."""
    sent: list[int] = []

    def send(original: Any, group: Any, tensors: list[Tensor], *args: Any) -> Any:
        sent.append(sum(tensor.nbytes for tensor in tensors))
        return original(group, tensors, *args)

    with attached(declarations.COUNTED_SEND, wrapping(send)):
        yield sent
