"""Models the cost of an algorithm by its steps and bytes.

The time of a message is alpha + beta * bytes: a latency, and a time per byte. A rank can send and receive at
once. The model leaves compute time out, because combining overlaps with the transfer of the next piece.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a collective; volumes are in sizes of the tensor.

    Args:
        steps: messages on the critical path, one after another.
        path: volume of these messages.
        sent: volume that the busiest rank sends.
    """

    steps: int
    path: float
    sent: float

    def time(self, nbytes: float, *, alpha: float, beta: float) -> float:
        """Return the seconds that a tensor of `nbytes` bytes takes.

        Args:
            nbytes: of the tensor.
            alpha: latency of a message in seconds.
            beta: seconds per byte.
        """
        return self.steps * alpha + self.path * nbytes * beta


CostModel: TypeAlias = Callable[[int], Cost]
"""Maps the number of ranks to the cost."""


def doublings(size: int) -> int:
    """Return log2 of `size`, rounded up."""
    return (size - 1).bit_length()
