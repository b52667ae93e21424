"""The coins of dropout on the CPU: those that ``bernoulli_`` would toss, at half the price.

torch takes one number of 64 bits for each coin, and the coin is whether its low 53 bits, as a fraction,
are below the probability. Where a rank needs a part of the coins, the numbers are drawn for all of them,
and only its part is compared. That is how torch does it now and nowhere promised: it is tried once, on a
few coins, and where they differ ``bernoulli_`` tosses them.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_BITS = 53
_MASK = (1 << _BITS) - 1


def bits(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Return a tensor of shape ``shape`` (int64): the numbers that as many coins take."""
    return torch.empty(shape, dtype=torch.int64).random_(-(2**63), None, generator=generator)


def heads(numbers: Tensor, probability: float) -> Tensor:
    """Return which of the coins with these numbers fall on heads: a tensor of bool of their shape."""
    return numbers.bitwise_and(_MASK) < math.ceil(math.ldexp(probability, _BITS))


@functools.cache
def are_torchs() -> bool:
    """Return whether these are torch's coins."""
    ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
    alike = all(
        torch.equal(
            heads(bits((33,), ours), probability),
            torch.empty(33).bernoulli_(probability, generator=theirs).bool(),
        )
        for probability in (0.1, 0.5, 0.8, 1.0)
    )
    return alike and torch.equal(ours.get_state(), theirs.get_state())
