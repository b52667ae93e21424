"""Times several calls against each other, interleaved in rounds, on all ranks at once.

The load of a machine changes over seconds and affects interleaved calls alike. Each round runs a block of
every call and begins with another one::

    round 0    native  ring  shared_memory
    round 1    ring  shared_memory  native
    round 2    shared_memory  native  ring

A block is a barrier and as many calls as take about `BLOCK_S`, so that the moment at which a rank leaves the
barrier does not matter.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from samestep.bench.figures import slowest
from samestep.ranks.world.protocol import World

T = TypeVar("T")
Call: TypeAlias = Callable[[int], object]
"""A call to time; its argument counts the calls of the block from 0."""

BLOCK_S = 1e-3
"""Seconds of a block, much longer than the difference between ranks that leave a barrier."""
MOST_CALLS = 200
"""Most calls of a block, however short they are."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 200
"""Rounds: three have quartiles, and more than 200 do not change them."""


def rounds_within(seconds: float, each: float) -> int:
    """Return how many rounds of `each` seconds are measured in `seconds`."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / each)))


def in_rounds(names: Sequence[T], rounds: int) -> Iterator[T]:
    """Yield all names in each round, which begins with another name than the round before."""
    for number in range(rounds):
        first = number % len(names)
        yield from (*names[first:], *names[:first])


def timed_interleaved(
    world: World,
    calls: Mapping[str, Call],
    *,
    seconds: float,
    finish: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per call on the slowest rank, by name, one for each round.

    Args:
        world: the ranks; all of them call this.
        calls: the calls to time by name; the same on all ranks.
        seconds: time to measure for; there are at least `LEAST_ROUNDS` rounds.
        finish: waits until the device has finished.
        clock: returns seconds.
    """

    def block(name: str) -> float:
        call, count = calls[name], counts[name]
        world.barrier()
        begin = clock()
        for number in range(count):
            call(number)
        finish()
        return (clock() - begin) / count

    counts = dict.fromkeys(calls, 1)
    # The first calls set things up, and in the second ones the ranks do not begin at once: neither counts.
    for number in range(3):
        of_ranks = world.all_gather_objects({name: block(name) for name in calls})
        taken = {name: max(of_rank[name] for of_rank in of_ranks) for name in calls}
        counts = {name: max(1, min(MOST_CALLS, round(BLOCK_S / max(taken[name], 1e-9)))) for name in calls}
        if number and max(counts.values()) == 1:
            break
    rounds = rounds_within(seconds, sum(taken[name] * counts[name] for name in calls))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in in_rounds(list(calls), rounds):
        times[name].append(block(name))
    every = world.all_gather_objects(times)
    return {name: slowest([of_rank[name] for of_rank in every]) for name in calls}
