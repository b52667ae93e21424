"""Computes this rank's part of the Bernoulli mask of dropout on the CPU, in half the time of ``bernoulli_``.

For each element torch draws 64 bits, and compares the low 53 bits, as a fraction, with the probability. A
rank that needs a part of a mask draws the bits of all elements, and compares only its part. torch does not
document
this: `matches_torch` tests it once on a few elements, and ``bernoulli_`` is used if it fails.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_BITS = 53
_MASK = (1 << _BITS) - 1


def random_bits(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Return the random bits of a mask: an int64 tensor of shape ``shape``."""
    return torch.empty(shape, dtype=torch.int64).random_(-(2**63), None, generator=generator)


def bernoulli_mask(bits: Tensor, probability: float) -> Tensor:
    """Return the mask with these random bits: a bool tensor, true with the given probability."""
    return bits.bitwise_and(_MASK) < math.ceil(math.ldexp(probability, _BITS))


@functools.cache
def matches_torch() -> bool:
    """Return whether masks and the generator after them equal those of torch."""
    ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
    equal = all(
        torch.equal(
            bernoulli_mask(random_bits((33,), ours), probability),
            torch.empty(33).bernoulli_(probability, generator=theirs).bool(),
        )
        for probability in (0.1, 0.5, 0.8, 1.0)
    )
    return equal and torch.equal(ours.get_state(), theirs.get_state())
