"""A schedule is a list of hops, as seen by one rank: pure data that can be printed, counted and drawn.

A tensor is cut into chunks, which hops name by number. Two schedules follow from others: backwards, a reduce
is a broadcast and a scatter a gather; and a root other than rank 0 is a schedule of ranks that are numbered
from it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Chunks: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """What one rank sends and receives at once.

    Args:
        to: the rank that it sends to; None if it only receives.
        send: the chunks that it sends.
        source: the rank that it receives from; None if it only sends.
        receive: the chunks that it receives.
    """

    to: int | None = None
    send: Chunks = ()
    source: int | None = None
    receive: Chunks = ()


Schedule: TypeAlias = list[Hop]


def backwards(hops: Iterable[Hop]) -> Schedule:
    """Return the schedule that undoes another: last hop first, what was sent is received."""
    return [
        Hop(to=hop.source, send=hop.receive, source=hop.to, receive=hop.send) for hop in reversed(list(hops))
    ]


def seen_from(root: int, size: int, hops: Iterable[Hop], *, chunks_too: bool = False) -> Schedule:
    """Return the schedule with `root` in the place of rank 0, its neighbour in that of rank 1 and so on.

    Args:
        root: the rank.
        size: the number of ranks.
        hops: of one rank, numbered from the root.
        chunks_too: whether there is one chunk for each rank, which moves with it.
    """

    def rank(number: int | None) -> int | None:
        return None if number is None else (number + root) % size

    def chunks(numbers: Chunks) -> Chunks:
        return tuple((number + root) % size for number in numbers) if chunks_too else numbers

    return [
        Hop(to=rank(hop.to), send=chunks(hop.send), source=rank(hop.source), receive=chunks(hop.receive))
        for hop in hops
    ]


def bounds(elements: int, chunks: int) -> list[int]:
    """Return where chunks begin and the last one ends; their sizes differ by one at most.

    >>> bounds(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [elements * chunk // chunks for chunk in range(chunks + 1)]


def runs(chunks: Chunks) -> Iterator[tuple[int, int]]:
    """Yield the first chunk of each run of neighbours, and the one behind its last.

    >>> list(runs((2, 3, 0)))
    [(2, 4), (0, 1)]
    """
    starts = [0, *(i for i, (one, next_one) in enumerate(pairwise(chunks), 1) if next_one != one + 1)]
    for start, end in pairwise([*starts, len(chunks)]):
        if chunks:
            yield chunks[start], chunks[end - 1] + 1
