"""Interleaves the runs of a study, so that a drifting machine affects all of them equally.

Every configuration runs once in each round. A round is followed by its mirror image, so that a drift (heat, a
job on the same node) averages out::

    round 0    2  8  1  4        shuffled
    round 1    4  1  8  2        mirrored
    round 2    1  4  8  2        shuffled anew
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def interleaved(cases: Sequence[T], *, rounds: int, seed: int) -> list[tuple[int, T]]:
    """Return pairs of round and configuration, in the order in which they run.

    Args:
        cases: the configurations of each round.
        rounds: their number.
        seed: of the shuffling.
    """
    draw = random.Random(seed)
    order = list(cases)
    turns: list[tuple[int, T]] = []
    for number in range(rounds):
        if number % 2:
            order.reverse()
        else:
            draw.shuffle(order)
        turns += [(number, case) for case in order]
    return turns
