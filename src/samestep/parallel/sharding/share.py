"""Computes each rank's share of a global batch, and the weight of its mean."""


def share(count: int, rank: int, size: int) -> range:
    """Return the indices in a global batch of `count` samples that `rank` of `size` takes.

    Shares are contiguous and in rank order; the first ``count % size`` ranks take one sample more. Shares
    of 7 samples::

        sample    0 1 2 3 4 5 6
        1 rank    0 0 0 0 0 0 0
        2 ranks   0 0 0 0 1 1 1
        3 ranks   0 0 0 1 1 2 2
        9 ranks   0 1 2 3 4 5 6         ranks 7 and 8 take none

    >>> [share(7, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


def weight(local: int, total: int, size: int) -> float:
    """Return the weight of the mean over `local` of `total` samples, in an average over `size` ranks.

    The ranks' gradients are averaged with 1/N, so each rank's mean loss is first multiplied by its weight::

         1                           local * N      sum of local losses       sum of all losses
        --- * sum over ranks of    ----------- *   ---------------------  =  -------------------
         N                            total                local                    total

    The weights of all ranks add up to N; equal shares have weight 1.0, an empty share has 0.0.

    >>> [weight(local, 7, 3) for local in (3, 2, 2)]
    [1.2857142857142858, 0.8571428571428571, 0.8571428571428571]
    """
    return local * size / total
