"""Computes per-sample random numbers as pure functions of (seed, epoch, sample id).

With a stream of random numbers, the augmentation of a sample would depend on its batch and its rank. Here
each sample has 64 bits hashed from ``(seed, epoch, id)``, on any device, in a few kernels per batch. Source
of the mixing function: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
(SplitMix64; the constants are David Stafford's variant 13).
"""

from torch import Tensor

from samestep.parallel.sharding.position import Position

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def sample_words(ids: Tensor, position: Position) -> Tensor:
    """Return 64 random bits for each sample, as int64, in the shape and on the device of `ids`.

    Args:
        ids: int64 sample ids.
        position: gives seed and epoch; its sample count is ignored.
    """
    key = _mix((_mix((position.seed + _GOLDEN) & _WORD) + position.epoch) & _WORD)
    # int64 arithmetic wraps: it is arithmetic modulo 2**64 in two's complement.
    return _mixed(ids * _signed(_GOLDEN) + _signed(key))


def rehash(words: Tensor, number: int) -> Tensor:
    """Return different bits of each word for each `number`; for 0 the words themselves."""
    return words if number == 0 else _mixed(words + _signed((number * _GOLDEN) & _WORD))


def integers(words: Tensor, below: int, *, bit: int) -> Tensor:
    """Return integers 0 .. below-1 from 20 bits of each word, starting at `bit`.

    They are uniform up to a relative error of ``below / 2**20``.
    """
    field = (words >> bit) & 0xFFFFF
    return (field * below) >> 20


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's ``>>`` on int64 is an arithmetic shift."""
    return (x >> bits) & (_WORD >> bits)


def _mixed(x: Tensor) -> Tensor:
    """Mix each word; see `_mix`."""
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def _mix(x: int) -> int:
    """Mix one word by the finalizer of SplitMix64."""
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    """Return the int64 that has the bits of the unsigned `word`."""
    return word - 2**64 if word >= 2**63 else word
