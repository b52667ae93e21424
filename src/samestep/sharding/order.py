"""The order of an epoch's samples, as a pure function of (seed, epoch, count)."""

import numpy as np
from numpy.typing import NDArray


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Return the ids 0 .. count-1 in the order that `epoch` visits them.

    Every rank computes it for itself; nothing is sent. It is the order that sorts `count` random
    64-bit words, drawn from the counter-based Philox generator under the key (seed, epoch): only the
    bit stream of Philox is relied upon, which NumPy keeps from version to version, unlike the
    algorithm behind its `permutation`.

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
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
