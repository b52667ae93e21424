"""Computes points from a table of times: numbers of workers and the seconds of whole runs."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from samestep.studies.scaling.analysis.confidence import of_rates
from samestep.studies.scaling.analysis.study import Mode, Point

UNIT = "runs/s"
"""The unit of the rates of such a study."""


class Time(NamedTuple):
    """The time of one run."""

    workers: int
    seconds: float
    is_weak: bool = False
    """Whether the work of each worker, not of all together, is that of the baseline."""


def from_times(rows: Iterable[tuple[int, float] | Time]) -> tuple[Point, ...]:
    """Return a point for each number of workers and mode; several rows of one are its repeats.

    The baseline runs are of both modes, unless each mode has its own (`has_two_bases`). Their work is one
    run in `UNIT`.
    """
    times = [Time(*row) for row in rows]
    smallest = min(time.workers for time in times)
    has_two = has_two_bases(times)
    seconds: dict[tuple[int, bool], list[float]] = {}
    for time in times:
        is_weak = time.is_weak and (has_two or time.workers > smallest)
        seconds.setdefault((time.workers, is_weak), []).append(time.seconds)
    points = []
    for (workers, is_weak), taken in sorted(seconds.items()):
        runs = workers / smallest if is_weak else 1.0
        mode: Mode = "weak" if is_weak else "strong"
        rates = of_rates(tuple(runs / one for one in taken))
        points.append(Point(workers=workers, mode=mode, speedup=float(workers), efficiency=1.0, **rates))
    return tuple(points)


def has_two_bases(times: Sequence[Time]) -> bool:
    """Return whether the baseline has both strong and weak runs, which need not do the same work."""
    smallest = min(time.workers for time in times)
    return len({time.is_weak for time in times if time.workers == smallest}) > 1
