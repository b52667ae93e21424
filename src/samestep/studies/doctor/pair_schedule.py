"""Schedules the measurements of pairs of ranks: each pair once, and no host in two pairs at a time.

::

    ranks 0 1 | 2 3, two on each of two hosts:      ranks on hosts of their own:

    round 0   0-1   2-3                             0-1   2-3
    round 1   0-2                                   0-2   1-3
    round 2   0-3                                   0-3   1-2
    round 3   1-2
    round 4   1-3
"""

from collections.abc import Sequence
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
"""Two ranks, the lower one first."""

MOST = 8
"""Up to this number of ranks, every pair is measured; beyond it, only pairs of one rank of each host."""


def measured(hosts: Sequence[str]) -> list[int]:
    """Return the ranks that measure.

    Args:
        hosts: the host of each rank, in rank order; empty for a missing rank.
    """
    there = [rank for rank, host in enumerate(hosts) if host]
    if len(there) <= MOST:
        return there
    firsts = {hosts[rank]: rank for rank in reversed(there)}
    return sorted(firsts.values())


def rounds(hosts: Sequence[str], ranks: Sequence[int]) -> list[list[Pair]]:
    """Return all pairs of `ranks` in rounds, so that no host is in two pairs of a round.

    Args:
        hosts: the host of each rank, in rank order.
        ranks: the ranks that measure, in order.
    """
    left = [(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]]
    made = []
    while left:
        busy: set[str] = set()
        this: list[Pair] = []
        for a, b in left:
            if hosts[a] not in busy and hosts[b] not in busy:
                busy |= {hosts[a], hosts[b]}
                this.append((a, b))
        taken = set(this)
        left = [pair for pair in left if pair not in taken]
        made.append(this)
    return made


def before(pair: Pair, every: Sequence[Sequence[Pair]], hosts: Sequence[str]) -> list[Pair]:
    """Return the pairs of the last earlier round of each host of `pair`, which must end before it."""
    number = next(i for i, this in enumerate(every) if pair in this)
    needed = []
    for host in {hosts[rank] for rank in pair}:
        for this in reversed(every[:number]):
            found = [one for one in this if host in {hosts[rank] for rank in one}]
            if found:
                needed += found
                break
    return sorted(set(needed))
