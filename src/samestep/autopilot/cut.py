"""One batch in as many slices as there are ranks: cutting and putting together, as autograd sees them.

The two are each other's derivative, but for the number of ranks N::

                      forward                          backward
    sliced            this rank's slice of x           N-th part of the gathered gradients
    gathered          all ranks' slices as one         N times this rank's slice of the gradient

because gradients are averaged over ranks: what every rank computes alike, before the cut and after the
gathering, has the same gradient on all of them, and the average leaves it as it is; what a rank computes of
its slice has N times its part, and the average of the ranks is the sum of the parts. Each derivative is made
of these functions again, so both can be differentiated twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from samestep.sharding.share import share
from samestep.world.world import World


@dataclass(frozen=True, eq=False)
class Cut:
    """The slices of one batch, and this rank's slice."""

    world: World
    total: int
    """Samples of the batch."""

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Samples of each rank."""
        size = self.world.place.size
        return tuple(len(share(self.total, rank, size)) for rank in range(size))

    @property
    def local(self) -> int:
        """Samples of this rank."""
        return self.counts[self.world.place.rank]

    @cached_property
    def start(self) -> int:
        """The first sample of this rank."""
        return share(self.total, self.world.place.rank, self.world.place.size).start

    def sliced(self, whole: Tensor, dim: int, *, every: int = 1) -> Tensor:
        """Return this rank's slice of `whole`, which has `every` places along `dim` for each sample."""
        if not (whole.requires_grad and torch.is_grad_enabled()):
            return whole.narrow(dim, self.start * every, self.local * every)
        result: Tensor = _Slice.apply(whole, self, dim, every)  # type: ignore[no-untyped-call]
        return result

    def gathered(
        self, part: Tensor, dim: int, *, every: int = 1, order: tuple[int, ...] | None = None
    ) -> Tensor:
        """Return the ranks' slices concatenated along `dim`.

        Args:
            part: this rank's, with `every` places along `dim` for each sample.
            dim: which dimension counts samples.
            every: places for each sample.
            order: the dimensions of the result, outermost in memory first; their own order if None.
        """
        result: Tensor = _Gather.apply(part, self, dim, every, order)  # type: ignore[no-untyped-call]
        return result

    def added(self, part: Tensor, weight: float = 1.0) -> Tensor:
        """Return the sum over ranks of `weight` times `part`; a part of weight 0 may be NaN."""
        result: Tensor = _Add.apply(part, self.world, weight)  # type: ignore[no-untyped-call]
        return result

    def put_together(
        self, part: Tensor, dim: int, every: int, order: tuple[int, ...] | None = None
    ) -> Tensor:
        """As `gathered`, without autograd."""
        lengths = [count * every for count in self.counts]
        if order is None:
            return gather(self.world, part, dim, lengths).contiguous()
        whole = gather(self.world, part.permute(order), order.index(dim), lengths)
        return whole.contiguous().permute(inverse(order))


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, cut: Cut, dim: int, every: int) -> Tensor:
        ctx.cut, ctx.dim, ctx.every = cut, dim, every
        return whole.narrow(dim, cut.start * every, cut.local * every).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.cut.gathered(grad, ctx.dim, every=ctx.every) / ctx.cut.world.place.size, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, cut: Cut, dim: int, every: int, order: tuple[int, ...] | None
    ) -> Tensor:
        ctx.cut, ctx.dim, ctx.every = cut, dim, every
        return cut.put_together(part, dim, every, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        own = ctx.cut.sliced(grad, ctx.dim, every=ctx.every)
        return own * ctx.cut.world.place.size, None, None, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, world: World, weight: float) -> Tensor:
        ctx.factor = weight * world.place.size
        if weight == 0:
            total = torch.zeros_like(part)
        else:
            total = part.detach().clone() if weight == 1 else part.detach() * weight
        world.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.factor, None, None


def gather(world: World, part: Tensor, dim: int, lengths: Sequence[int]) -> Tensor:
    """Return the ranks' parts, `lengths` of them along `dim`, as one tensor.

    They travel as bytes, so that tensors of all dtypes can; shorter ones are filled up.
    """
    flat = part.detach().movedim(dim, 0).contiguous()
    row = flat[:1].numel() if len(flat) else _numel(part.shape[:dim] + part.shape[dim + 1 :])
    message = torch.zeros(max(lengths) * row, dtype=part.dtype, device=part.device)
    message[: flat.numel()] = flat.reshape(-1)
    parts = world.all_gather(message.view(torch.uint8))
    shape = (-1, *flat.shape[1:]) if row else flat.shape
    rows = [
        one.view(part.dtype)[: length * row].view(shape if length else (0, *flat.shape[1:]))
        for one, length in zip(parts, lengths, strict=True)
    ]
    return torch.cat(rows).movedim(0, dim)


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a tensor, outermost in memory first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes `order`."""
    return sorted(range(len(order)), key=order.__getitem__)


def _numel(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
