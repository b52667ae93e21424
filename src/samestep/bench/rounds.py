"""Timing several things against each other: round by round, all ranks at once.

What machine and neighbours do changes over seconds; what is measured in turns has the same of it. In each
round every one of them has its turn, and each round begins with another::

    round 0    native  ring  shared_memory  copy
    round 1    ring  shared_memory  copy  native
    round 2    shared_memory  copy  native  ring

A turn is a barrier and as many calls, one after another, as make about `TURN_S`: so that it does not matter
when exactly a rank leaves the barrier. Another barrier, which is not timed, ends it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

from samestep.bench.figures import slowest
from samestep.world.world import World

T = TypeVar("T")
Call: TypeAlias = Callable[[int], object]
"""Does it once; told how many times it was done before, in this turn."""

TURN_S = 1e-3
MOST_CALLS = 200
LEAST_ROUNDS, MOST_ROUNDS = 3, 200


def turns(names: Sequence[T], number: int) -> list[T]:
    """Return the order of a round: each begins with another."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def in_turns(
    world: World,
    calls: Mapping[str, Call],
    *,
    rounds: int | None,
    seconds: float,
    finish: Callable[[], object],
    around: Callable[[str], AbstractContextManager[object]] = nullcontext,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of a call of each, one for each round: those of the slowest rank.

    Args:
        world: the ranks; all of them call this.
        calls: what to time, by name; the same on all ranks.
        rounds: how many; None for as many as `seconds` hold.
        seconds: to measure for.
        finish: returns once the device has done what was called.
        around: what a turn is taken in, by the name of what has it.
        clock: returns seconds.
    """

    def turn(name: str) -> float:
        call, count = calls[name], counts[name]
        with around(name):
            world.barrier()
            begin = clock()
            for number in range(count):
                call(number)
            finish()
            taken = (clock() - begin) / count
            world.barrier()  # so that all ranks know by whom they are kept
        return taken

    counts = dict.fromkeys(calls, 1)
    # What a first call sets up is nobody's time; nor is, in the second, that ranks do not begin at once.
    for number in range(3):
        told = world.all_gather_objects({name: turn(name) for name in calls})
        taken = {name: max(of_rank[name] for of_rank in told) for name in calls}
        counts = {name: max(1, min(MOST_CALLS, round(TURN_S / max(taken[name], 1e-9)))) for name in calls}
        if number and max(counts.values()) == 1:
            break
    if rounds is None:
        whole = sum(taken[name] * counts[name] for name in calls)
        rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / whole)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in turns(list(calls), number):
            times[name].append(turn(name))
    every = world.all_gather_objects(times)
    return {name: slowest([of_rank[name] for of_rank in every]) for name in calls}
