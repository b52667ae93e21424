"""Averages a large gradient in place, without a message buffer."""

import torch
from torch import Tensor

from samestep.parallel.gradients.bucket import dense_gradient, real
from samestep.ranks.world.protocol import World


class InPlaceGradient:
    """A replacement for a bucket of one gradient, which saves copying what does not fit into the cache.

    A message before it shows whether any rank has the gradient, and whether any is steady; in the worlds
    that this is for, such a message costs next to nothing.

    Args:
        world: the ranks to average over; its all-reduces have ended when they return.
        name: the parameter's name.
        parameter: the parameter whose gradient is averaged.
    """

    has_payload = False

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
        """See `Bucket.wait`; `send` has waited."""

    def drain(self) -> None:
        """See `Bucket.drain`; `send` has waited."""

    def unpack(self) -> None:
        """See `Bucket.unpack`; the average is in the gradient."""

    def any_rank_steady(self) -> bool:
        """See `Bucket.any_rank_steady`."""
        return self._flags[1].item() > 0
