"""Points from what others have timed: a number of workers and the seconds that a whole run took."""

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from samestep.scaling.interval import of_repeats
from samestep.scaling.study import Mode, Point

UNIT = "runs/s"
"""What the rates of such a study count."""


class Time(NamedTuple):
    """One run."""

    workers: int
    """How many."""
    seconds: float
    """How long it took."""
    is_weak: bool = False
    """Whether each worker did as much as at the fewest workers, not all of them together."""


def from_times(rows: Iterable[tuple[int, float] | Time]) -> tuple[Point, ...]:
    """Return a point for each number of workers and mode; several rows of one are its repeats.

    The runs on the fewest workers are of both modes, unless each mode has its own (`has_two_bases`). What
    they do is the run of `UNIT`.

    Args:
        rows: workers, seconds, and whether they are weak.
    """
    times = [Time(*row) for row in rows]
    fewest = min(time.workers for time in times)
    has_two = has_two_bases(times)
    seconds: dict[tuple[int, bool], list[float]] = {}
    for time in times:
        is_weak = time.is_weak and (has_two or time.workers > fewest)
        seconds.setdefault((time.workers, is_weak), []).append(time.seconds)
    return tuple(
        _point(
            workers, taken, runs=workers / fewest if is_weak else 1.0, mode="weak" if is_weak else "strong"
        )
        for (workers, is_weak), taken in sorted(seconds.items())
    )


def has_two_bases(times: Sequence[Time]) -> bool:
    """Return whether the fewest workers have strong runs and weak ones: nobody says that these are alike."""
    fewest = min(time.workers for time in times)
    return len({time.is_weak for time in times if time.workers == fewest}) > 1


def _point(workers: int, seconds: list[float], *, runs: float, mode: Mode) -> Point:
    rates = tuple(runs / taken for taken in seconds)
    low, high = of_repeats(rates) or (None, None)
    return Point(
        workers=workers,
        mode=mode,
        samples_per_second=median_low(rates),  # of a run, as everywhere
        samples_per_second_low=low,
        samples_per_second_high=high,
        speedup=float(workers),
        efficiency=1.0,
        runs=rates,
    )
