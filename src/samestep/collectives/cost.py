"""What an algorithm costs: steps one after another, and bytes.

The time of a message is alpha + beta * bytes: a part that every message takes, and a part for each byte. A
rank can send and receive at once. What computing takes is left out: combining runs while the next piece is on
its way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a collective costs; bytes are given in sizes of the tensor.

    Args:
        steps: messages that have to wait for each other.
        path: tensors that pass one after another on the way of those steps.
        sent: tensors that the busiest rank sends.
    """

    steps: int
    path: float
    sent: float

    def time(self, nbytes: float, *, alpha: float, beta: float) -> float:
        """Return the seconds that a tensor takes.

        Args:
            nbytes: of the tensor.
            alpha: seconds that a message takes, however short.
            beta: seconds for each byte.
        """
        return self.steps * alpha + self.path * nbytes * beta


CostModel: TypeAlias = Callable[[int], Cost]
"""From the number of ranks to the cost."""


def doublings(size: int) -> int:
    """Return how often 1 has to be doubled to reach `size`: log2, rounded up."""
    return (size - 1).bit_length()
