"""All-reduce by recursive halving and doubling (N = 6).

P is the largest power of two up to N. First N - P ranks send their tensor to a neighbor, which adds it::

    fold      0 < 1    2 < 3    4    5       0, 2, 4, 5 continue, as 0, 1, 2, 3 of P = 4

    halve     0 <--(0,1 | 2,3)--> 2          0 and 1 keep the first half, 2 and 3 the second
              1 <--(0,1 | 2,3)--> 3
    halve     0 <-(0|1)-> 1   2 <-(2|3)-> 3  now each has one complete chunk
    double    0 <-(0|1)-> 1   2 <-(2|3)-> 3
    double    0 <--(0,1 | 2,3)--> 2
              1 <--(0,1 | 2,3)--> 3

    unfold    0 > 1    2 > 3    4    5

Cost: 2 log2 P steps, and each rank sends 2(P-1)/P of the tensor: as few bytes as the ring in far fewer steps.
If N is no power of two, two steps of the whole tensor are added. It is the fastest where N is a power of two,
and for medium sizes elsewhere.

Source: R. Rabenseifner: Optimization of collective reduction operations, 2004.
"""

from samestep_lab.collectives.all_reduce import AllReduce
from samestep_lab.collectives.schedule import Chunks, Hop, Schedule, backwards


def combine(rank: int, size: int) -> Schedule:
    """Return the hops of one rank until each chunk is complete on its owner; there are P chunks."""
    power = largest_power(size)
    everything = tuple(range(power))
    folded = size - power
    hops: Schedule = []
    if rank < 2 * folded:
        if rank % 2:
            return [Hop(to=rank - 1, send=everything)]
        hops.append(Hop(source=rank + 1, receive=everything))
    return hops + _halving(_number(rank, folded), power, folded)


def copy(rank: int, size: int) -> Schedule:
    """Return the hops of one rank that copy all chunks to all ranks."""
    return backwards(combine(rank, size))


def owned(rank: int, size: int) -> Chunks:
    """Return the chunks that a rank owns: one on each rank that continues."""
    folded = size - largest_power(size)
    return () if rank < 2 * folded and rank % 2 else (_number(rank, folded),)


def largest_power(size: int) -> int:
    """Return the largest power of two up to `size`."""
    return 1 << (size.bit_length() - 1)


def _halving(number: int, power: int, folded: int) -> Schedule:
    """Return the hops of a rank, given its number among the ranks that continue."""
    hops: Schedule = []
    start, distance = 0, power // 2
    while distance:
        halves = tuple(range(start, start + distance)), tuple(range(start + distance, start + 2 * distance))
        partner = _rank(number ^ distance, folded)
        upper = bool(number & distance)
        hops.append(Hop(to=partner, send=halves[not upper], source=partner, receive=halves[upper]))
        start += distance * upper
        distance //= 2
    return hops


def _number(rank: int, folded: int) -> int:
    return rank // 2 if rank < 2 * folded else rank - folded


def _rank(number: int, folded: int) -> int:
    return 2 * number if number < folded else number + folded


HALVING_DOUBLING = AllReduce(
    name="halving_doubling", chunks=largest_power, combine=combine, owned=owned, copy=copy
)
