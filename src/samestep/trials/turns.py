"""The order of the runs: in turns, shuffled, so that a noisy machine favours nobody.

Every case has its turn in each round. What drifts (heat, a neighbour's job) meets all cases alike because a
round is followed by its mirror image::

    round 0    2  8  1  4        shuffled
    round 1    4  1  8  2        mirrored
    round 2    1  4  8  2        shuffled anew
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turns(cases: Sequence[T], *, rounds: int, seed: int) -> list[tuple[int, T]]:
    """Return the number of the round and the case, in the order in which they run.

    Args:
        cases: what has its turn in each round.
        rounds: how many.
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
