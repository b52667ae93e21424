"""Defines schedules: lists of one rank's hops, as pure data that can be printed, counted and drawn.

A tensor is divided into chunks, which hops name by number. Two kinds of schedules are derived: in reverse, a
reduce is a broadcast and a scatter a gather; and for another root than rank 0, ranks are renumbered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Chunks: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A send and a receive of one rank at the same time."""

    to: int | None = None  # the rank that it sends to; None if it only receives
    send: Chunks = ()  # the chunks that it sends
    source: int | None = None  # the rank that it receives from; None if it only sends
    receive: Chunks = ()  # the chunks that it receives


Schedule: TypeAlias = list[Hop]


def doublings(size: int) -> int:
    """Return log2 of `size`, rounded up."""
    return (size - 1).bit_length()


def backwards(hops: Iterable[Hop]) -> Schedule:
    """Return a schedule in reverse: last hop first, with sends and receives swapped."""
    return [
        Hop(to=hop.source, send=hop.receive, source=hop.to, receive=hop.send) for hop in reversed(list(hops))
    ]


def rerooted(root: int, size: int, hops: Iterable[Hop], *, chunks_too: bool = False) -> Schedule:
    """Return a schedule for another root than rank 0: rank r becomes rank r + `root`, modulo `size`.

    With `chunks_too`, chunks are renumbered as well, as there is one per rank.
    """

    def rank(number: int | None) -> int | None:
        return None if number is None else (number + root) % size

    def chunks(numbers: Chunks) -> Chunks:
        return tuple((number + root) % size for number in numbers) if chunks_too else numbers

    return [
        Hop(to=rank(hop.to), send=chunks(hop.send), source=rank(hop.source), receive=chunks(hop.receive))
        for hop in hops
    ]


def runs(chunks: Chunks) -> Iterator[tuple[int, int]]:
    """Yield the first chunk of each run of consecutive chunks, and the end of the run.

    >>> list(runs((2, 3, 0)))
    [(2, 4), (0, 1)]
    """
    starts = [0, *(i for i, (chunk, next_chunk) in enumerate(pairwise(chunks), 1) if next_chunk != chunk + 1)]
    for start, end in pairwise([*starts, len(chunks)]):
        if chunks:
            yield chunks[start], chunks[end - 1] + 1
