"""Describes the random draws of a call: their shapes for the whole batch, and their sample dimensions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrawType:
    """One draw of a call: the operation, and the number of dimensions that it draws.

    Args:
        operation: the name of the operation.
        rank: the number of dimensions.
    """

    operation: str
    rank: int


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """One draw of an unsplit call.

    Args:
        draw: the operation.
        shape: the shape of the drawn tensor.
        order: its dimensions, outermost in memory first.
    """

    draw: DrawType
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The sample dimension of each random draw of a call, as the equivalence check has found it.

    Args:
        draws: the draws, in the order of the call.
        dims: the sample dimension of each draw; None where the draw does not depend on the samples.
        orders: the dimensions of each draw, outermost in memory first.
        inner: whether samples vary faster than positions, if one dimension combines both.
    """

    draws: tuple[DrawType, ...] = ()
    dims: tuple[int | None, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    inner: bool = False

    def find(self, draw: DrawType, number: int) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the sample dimension of a draw, and its order in memory; None for an unknown draw.

        If all draws of one operation agree, the number is ignored: a loop over time steps may draw more often
        than in the check.

        Args:
            draw: the draw.
            number: its index among the draws of the call.
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
