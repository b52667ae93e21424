"""A large gradient that is exchanged where it lies, without a buffer to travel in."""

import torch
from torch import Tensor

from samestep.replicas.bucket import dense_gradient, real
from samestep.world.world import World


class Alone:
    """In place of a bucket of one: what does not fit into the cache is not copied once more.

    Whether any rank has the gradient, and whether any is steady, goes first, in a message of its own: for
    worlds in which that costs next to nothing.

    Args:
        world: the ranks to average over; its exchanges are over when they return.
        name: of the parameter.
        parameter: whose gradient it is.
    """

    has_passenger = False

    def __init__(self, world: World, name: str, parameter: Tensor) -> None:
        self._world, self._name, self._parameter = world, name, parameter
        self._flags = torch.zeros(2)

    def send(self, *, steady: bool = True) -> None:
        """Average the gradient over the ranks, if any has one."""
        grad = dense_gradient(self._name, self._parameter)
        self._flags[0], self._flags[1] = grad is not None, steady
        self._world.all_reduce(self._flags)
        if not self._flags[0]:
            return
        if grad is None:
            self._parameter.grad = torch.zeros_like(self._parameter)
            grad = real(self._parameter.grad)
        self._world.all_reduce(grad, op="mean")

    def wait(self) -> None:
        """See `Bucket.wait`; nothing is under way."""

    def settle(self) -> None:
        """See `Bucket.settle`; nothing is under way."""

    def unload(self) -> None:
        """See `Bucket.unload`; the average is where it belongs."""

    def anyone_steady(self) -> bool:
        """See `Bucket.anyone_steady`."""
        return self._flags[1].item() > 0
