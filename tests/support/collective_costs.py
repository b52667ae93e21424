"""The costs of each collective's algorithms, as ``docs/lab/collectives/index.md`` has them, on `size` ranks.

A cost is the number of steps one after another, the volume of their messages, and the volume that the busiest
rank sends, both in sizes of the tensor (of the result, for gathers).
"""

from typing import NamedTuple


class Cost(NamedTuple):
    steps: int
    path: float
    sent: float


def levels(size):
    return (size - 1).bit_length()


def naive(size):
    return Cost(2 * (size - 1), 2 * (size - 1), size - 1)


def tree(size):
    return Cost(2 * levels(size), 2 * levels(size), levels(size))


def ring(size):
    share = 2 * (size - 1) / size
    return Cost(2 * (size - 1), share, share)


def halving_doubling(size):
    power = 1 << (size.bit_length() - 1)
    share, extra = 2 * (power - 1) / power, int(size > power)
    return Cost(2 * (power.bit_length() - 1) + 2 * extra, share + 2 * extra, share + extra)


def broadcast_in_parts(size):
    share = 2 * (size - 1) / size
    return Cost(levels(size) + size - 1, share, share)


def around_the_ring(size):
    return Cost(size - 1, (size - 1) / size, (size - 1) / size)


def gather(size):
    half = (1 << levels(size)) // 2  # of the ranks: the chunks of the largest subtree
    return Cost(levels(size), (size - 1) / size, max(size - half, half // 2) / size if size > 1 else 0)


COSTS = {
    "all_reduce": {"naive": naive, "tree": tree, "ring": ring, "halving_doubling": halving_doubling},
    "broadcast": {
        "naive": lambda size: Cost(size - 1, size - 1, size - 1),
        "tree": lambda size: Cost(levels(size), levels(size), levels(size)),
        "scatter_all_gather": broadcast_in_parts,
    },
    "all_gather": {"ring": around_the_ring},
    "reduce": {"tree": lambda size: Cost(levels(size), levels(size), min(1, size - 1))},
    "reduce_scatter": {"ring": around_the_ring},
    "gather": {"tree": gather},
    "scatter": {"tree": lambda size: Cost(levels(size), (size - 1) / size, (size - 1) / size)},
}
