"""Describes the random draws of a call, and a rank's part of a draw for the whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.autopilot.split.sharded_autograd import inverse, memory_order


@dataclass(frozen=True, slots=True)
class DrawType:
    """An operation, and the number of dimensions that it draws."""

    operation: str
    rank: int

    @classmethod
    def of(cls, func: Any, shape: Sequence[int]) -> "DrawType":
        """Return the type of a draw of this shape."""
        return cls(str(func.overloadpacket), len(shape))


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """One draw of an unsplit call: its shape, and its dimensions, outermost in memory first."""

    draw: DrawType
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The sample dimension of each random draw of a call, as the equivalence check has found it.

    Args:
        records: the draws of the unsplit call, in their order.
        dims: the sample dimension of each draw; None where the draw does not depend on the samples.
        inner: whether samples vary faster than positions, if one dimension combines both.
    """

    records: tuple[DrawRecord, ...]
    dims: tuple[int | None, ...]
    inner: bool

    def find(self, draw: DrawType, number: int) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the sample dimension of the draw `number`, and its order; None for an unknown draw.

        If all draws of one operation agree, the number is ignored: a loop may draw more often than before.
        """
        planned = [(one.draw, (dim, one.order)) for one, dim in zip(self.records, self.dims, strict=True)]
        found = [place for one, place in planned if one == draw]
        if found and all(one == found[0] for one in found):
            return found[0]
        if number < len(planned) and planned[number][0] == draw:
            return planned[number][1]
        return None


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """A draw for the whole batch, and the position of this rank's part in it.

    Args:
        shape: the shape for the whole batch.
        dim: the dimension of the samples.
        start: the first sample of this rank.
        length: the number of samples of this rank.
        every: the number of positions along `dim` for each sample.
        inner: whether samples vary faster than positions.
        order: the dimensions of the whole batch's draw, outermost in memory first; None if unknown.
    """

    shape: tuple[int, ...]
    dim: int
    start: int
    length: int
    every: int = 1
    inner: bool = False
    order: tuple[int, ...] | None = None

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part."""
        part = self._part(whole)
        return part.flatten(self.dim, self.dim + 1) if self.inner else part

    def set_own(self, whole: Tensor, part: Tensor) -> None:
        """Write this rank's part."""
        own = self._part(whole)
        own.copy_(part.reshape(own.shape))

    def _part(self, whole: Tensor) -> Tensor:
        """Return a view of this rank's part; with `inner`, positions are a dimension before the samples."""
        if not self.inner:
            return whole.narrow(self.dim, self.start * self.every, self.length * self.every)
        rows: Tensor = torch.unflatten(whole, self.dim, (self.every, -1))
        return rows.narrow(self.dim + 1, self.start, self.length)

    def laid_out(self, new: Callable[[Sequence[int]], Tensor], like: Tensor) -> Tensor:
        """Return the tensor that `new` creates in the whole shape, in the memory layout of `like`.

        Numbers are drawn in memory order. A dimension of size 1, as in a slice of one sample, has no
        definite position in that order; `order` is used then.
        """
        is_definite = self.order is None or 1 not in like.shape
        order = memory_order(like) if is_definite or self.order is None else list(self.order)
        return new([self.shape[dim] for dim in order]).permute(inverse(order))

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the whole shape, with the memory layout and dtype of `like`."""
        return self.laid_out(like.new_empty, like)


def sample_dim(shape: Sequence[int], samples: int) -> tuple[int, int] | None:
    """Return the sample dimension, and the number of positions along it for each sample; None if none fits.

    It is the first dimension of size `samples`, or else dimension 0 if its size is a multiple of `samples`:
    samples are then flattened together with another dimension.
    """
    dim = next((dim for dim, size in enumerate(shape) if size == samples), None)
    if dim is not None:
        return dim, 1
    return (0, shape[0] // samples) if shape and samples and shape[0] % samples == 0 else None
