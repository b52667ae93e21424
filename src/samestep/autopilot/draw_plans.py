"""Random draws of a call as data: what was drawn for the whole batch, and which dimensions count samples."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OneDraw:
    """One draw of a call: the operation, and how many dimensions it has.

    Args:
        operation: its name.
        rank: the number of dimensions.
    """

    operation: str
    rank: int


@dataclass(frozen=True, slots=True)
class RecordedDraw:
    """One draw of a call of the whole batch.

    Args:
        draw: the operation.
        shape: what it drew.
        order: its dimensions, outermost in memory first.
    """

    draw: OneDraw
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """Which dimension of each draw of a call counts samples, as it was found in an equivalence check.

    Args:
        draws: in the order in which they were made.
        dims: the dimension of each, None where it draws nothing for samples.
        orders: the dimensions of each, outermost in memory first.
        inner: whether samples change faster than their places, where a dimension counts both.
    """

    draws: tuple[OneDraw, ...] = ()
    dims: tuple[int | None, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    inner: bool = False

    def find(self, draw: OneDraw, number: int) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the dimension of the draw with this number, and its order; None if it is not known.

        Where all draws of one operation agree, their number does not matter: a loop over time makes more.
        """
        found = [
            (dim, order)
            for one, dim, order in zip(self.draws, self.dims, self.orders, strict=True)
            if one == draw
        ]
        if found and all(one == found[0] for one in found):
            return found[0]
        if number < len(self.draws) and self.draws[number] == draw:
            return self.dims[number], self.orders[number]
        return None
