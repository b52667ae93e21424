"""Random numbers that belong to a sample: pure functions of (seed, epoch, sample id).

A stream of random numbers would tie what happens to a sample to the batch it is in and to the rank that
draws. Here each sample hashes its own: 64 well-mixed bits from ``(seed, epoch, id)``, on any device, in
a few kernels per batch. Source of the mixing function: Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014 (SplitMix64; the constants are David Stafford's variant 13).
"""

from torch import Tensor

from samestep.sharding.position import Position

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def sample_words(ids: Tensor, position: Position) -> Tensor:
    """Return 64 random bits for each sample, as int64, in `ids`' shape and device.

    Args:
        ids: int64 sample ids.
        position: whose seed and epoch to draw for; the samples used do not matter.
    """
    key = _mix((_mix((position.seed + _GOLDEN) & _WORD) + position.epoch) & _WORD)
    # int64 arithmetic wraps: it is arithmetic modulo 2**64 in two's complement.
    return _mixed(ids * _signed(_GOLDEN) + _signed(key))


def rehash(words: Tensor, number: int) -> Tensor:
    """Return other bits of each word for each `number`; for 0 the words themselves."""
    return words if number == 0 else _mixed(words + _signed((number * _GOLDEN) & _WORD))


def integers(words: Tensor, below: int, *, bit: int) -> Tensor:
    """Return integers 0 .. below-1 made of 20 bits of each word, from `bit` up.

    Uniform but for one part in ``2**20 / below``.
    """
    field = (words >> bit) & 0xFFFFF
    return (field * below) >> 20


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right without the sign: torch's ``>>`` on int64 brings copies of it along."""
    return (x >> bits) & (_WORD >> bits)


def _mixed(x: Tensor) -> Tensor:
    """Mix each word; see `_mix`."""
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def _mix(x: int) -> int:
    """Mix one word: the finaliser of SplitMix64."""
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    """Return the int64 that has the bits of the unsigned `word`."""
    return word - 2**64 if word >= 2**63 else word
