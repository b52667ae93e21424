"""Describes the random draws of a call, and a rank's part of a draw for the whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.autopilot.split.packed_rows import PackedRows
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
class PlannedDraw:
    """One draw of a call, as the equivalence check has found it."""

    record: DrawRecord  # the draw of the unsplit call
    dim: int | None  # its sample dimension; None where the draw does not depend on the samples
    every: int = 1  # the number of positions along `dim` for each sample
    # the packed sequences whose rows dimension 0 may have, by their number in the call; none for other draws
    packings: tuple[int, ...] = ()

    def fits(
        self, draw: DrawType, shape: Sequence[int], samples: int, packings: Sequence[PackedRows] = ()
    ) -> bool:
        """Return whether a draw of a slice differs from this one in its number of samples only.

        `packings` are the packed sequences of the slice.
        """
        expected = list(self.record.shape)
        if self.packings:
            packing = self.packing_of(packings)
            expected[0] = -1 if packing is None else len(packing.rows)
        elif self.dim is not None:
            expected[self.dim] = self.every * samples
        return draw == self.record.draw and list(shape) == expected

    def packing_of(self, packings: Sequence[PackedRows]) -> PackedRows | None:
        """Return the packed sequences of the draw; None if it is unknown which they are."""
        found = [packings[place] for place in self.packings if place < len(packings)]
        is_known = found and all(torch.equal(one.rows, found[0].rows) for one in found)
        return found[0] if is_known else None


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The sample dimension of each random draw of a call, as the equivalence check has found it."""

    draws: tuple[PlannedDraw, ...]  # the draws of the unsplit call, in their order
    inner: bool  # whether samples vary faster than positions, if one dimension combines both

    def repeated(
        self, draw: DrawType, shape: Sequence[int], samples: int, packings: Sequence[PackedRows] = ()
    ) -> PlannedDraw | None:
        """Return the planned draw of this shape, whatever its number: a loop may draw more often than before.

        None if there is none, or if planned draws of this shape have other sample dimensions.
        """
        found = [one for one in self.draws if one.fits(draw, shape, samples, packings)]
        agree = len({(one.dim, one.record.order, one.packings) for one in found}) == 1
        return found[0] if agree else None

    def at(self, number: int, draw: DrawType) -> PlannedDraw | None:
        """Return the planned draw `number`, if it is of this type; its other sizes may differ."""
        planned = self.draws[number] if number < len(self.draws) else None
        return planned if planned is not None and planned.record.draw == draw else None


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """A draw for the whole batch, and the position of this rank's part in it."""

    shape: tuple[int, ...]  # the shape for the whole batch
    dim: int  # the dimension of the samples
    start: int  # the first sample of this rank
    length: int  # the number of samples of this rank
    every: int = 1  # the number of positions along `dim` for each sample
    inner: bool = False  # whether samples vary faster than positions
    # the dimensions of the whole batch's draw, outermost in memory first; None if unknown
    order: tuple[int, ...] | None = None
    rows: Tensor | None = None  # the rows of this rank, if they are those of packed sequences

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part."""
        if self.rows is not None:
            return whole.index_select(self.dim, self.rows.to(whole.device))
        part = self._part(whole)
        return part.flatten(self.dim, self.dim + 1) if self.inner else part

    def set_own(self, whole: Tensor, part: Tensor) -> None:
        """Write this rank's part."""
        if self.rows is not None:
            whole.index_copy_(self.dim, self.rows.to(whole.device), part)
            return
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
        definite position in that order, also where it has been flattened with another one; `order` is used
        then.
        """
        is_definite = self.order is None or (1 not in like.shape and self.length > 1)
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
