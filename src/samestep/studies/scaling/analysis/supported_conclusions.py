"""Decides which conclusions the intervals of a study support."""

import math
from collections.abc import Iterator, Sequence

from samestep.studies.scaling.analysis.baseline_check import outdone
from samestep.studies.scaling.analysis.confidence import Interval, of_ratio
from samestep.studies.scaling.analysis.knee import knee
from samestep.studies.scaling.analysis.point_text import DIFFER, VAGUE, counted, is_vague, percent, times
from samestep.studies.scaling.analysis.speedup import interval
from samestep.studies.scaling.analysis.study import Finding, Point

_MORE_RUNS = "measure more repeats of each"


def between(point: Point) -> Interval | None:
    """Return the interval of the speedup of `point`, or None."""
    low, high = point.speedup_low, point.speedup_high
    return None if low is None or high is None else (low, high)


def is_open(point: Point) -> bool:
    """Return whether the interval of `point` is too wide for a conclusion."""
    known = between(point)
    return known is not None and is_vague(known)


def reaches(point: Point, base: Point, bar: float) -> bool:
    """Return whether `point` has an efficiency, and is faster than the baseline unless it is that.

    Args:
        point: a number of workers.
        base: the baseline.
        bar: the efficiency.
    """
    return point.efficiency >= bar and (point is base or point.speedup > base.workers)


def is_decided(point: Point, base: Point, bar: float) -> bool:
    """Return whether the whole interval of `point` reaches an efficiency as in `reaches`, or none of it.

    Args:
        point: a number of workers other than the baseline, which has no interval.
        base: the baseline.
        bar: the efficiency.
    """
    known = between(point)
    if known is None:
        return False
    low, high = known
    least = max(bar * point.workers, base.workers)
    return high < least or (low >= least and low > base.workers)


def pays(point: Point, fewer: Point) -> bool | None:
    """Return whether `point` has more speedup times efficiency than `fewer`; None if inconclusive."""
    known = _ratio(point, fewer)
    if known is None:
        return None
    low, high = known
    needed = _needed(point, fewer)
    return True if low >= needed else False if high <= needed else None


def is_gain_sure(point: Point, base: Point) -> bool:
    """Return whether the runs determine the speed of `point`, and that it brings more than it costs."""
    known = between(point)
    return known is not None and not is_vague(known) and pays(point, base) is True


def is_end_sure(points: Sequence[Point], at: int) -> bool:
    """Return whether all points beyond `at` workers certainly cost more than they bring."""
    end, beyond = _split(points, at)
    return all(pays(point, end) is False for point in beyond)


def knee_words(points: Sequence[Point]) -> str:
    """Return the position of the knee of `points` as a sentence; empty if nothing can be compared.

    Args:
        points: of one mode and variant, by workers.
    """
    usable = [point for point in points if not point.oversubscribed]
    if len(usable) < 2 or usable[0] is not points[0] or outdone(usable) is not None:
        return ""
    at = knee(usable)
    end, beyond = _split(usable, at or usable[-1].workers)
    pairs = [
        *((point, end, False) for point in beyond),
        *((end, one, True) for one in usable if one.workers < end.workers),
    ]
    unsure = [(one, fewer) for one, fewer, wanted in pairs if pays(one, fewer) is not wanted]
    if any(is_open(point) for pair in unsure for point in pair):
        return f"The position of the knee is inconclusive: {DIFFER}."
    probably = "Probably the" if unsure else "The"
    if at is None:
        return f"{probably} knee was not reached with {counted(end.workers)}."
    return f"{probably} knee is at {counted(at)}: beyond, more workers cost more than they bring."


def caveats(points: Sequence[Point], *, bar: float | None, at: int) -> Iterator[Finding]:
    """Yield what the runs leave inconclusive, and what helps.

    Args:
        points: of one mode and variant, by workers.
        bar: the requested efficiency; None if the knee decides.
        at: the workers at the knee, or the most of them.
    """
    yield from _caveats_of_knee(points, at) if bar is None else _caveats_of_bar(points, bar)
    if any(between(point) is None for point in points[1:]):
        words = "Numbers of workers that ran once have no interval: measure more repeats."
        yield Finding("caveat", "single-runs", words)


def _caveats_of_bar(points: Sequence[Point], bar: float) -> Iterator[Finding]:
    base, *larger = points
    for point in larger:
        known = between(point)
        if known is None or is_decided(point, base, bar):
            continue
        code, what = "bar-undecided", f"reach {percent(bar)}"
        low, high = (percent(end / point.workers) for end in known)
        why = f"the efficiency is {low} to {high}; {_MORE_RUNS}"
        if bar * point.workers < base.workers:
            code, what = "faster-undecided", f"are faster than {base.workers}"
            low, high = (times(end / base.workers) for end in known)
            why = f"they are {low} to {high} as fast; {_MORE_RUNS}"
        why = VAGUE if is_vague(known) else why
        words = f"It is inconclusive whether {counted(point.workers)} {what}: {why}."
        yield Finding("caveat", code, words, (point.workers,))


def _caveats_of_knee(points: Sequence[Point], at: int) -> Iterator[Finding]:
    vague = [point for point in points[1:] if is_open(point)]
    for point in vague:
        words = f"The speed of {counted(point.workers)} is inconclusive: {VAGUE}."
        yield Finding("caveat", "speed-undecided", words, (point.workers,))
    end, beyond = _split(points, at)
    pairs = [*([(end, points[0])] if end is not points[0] else []), *((point, end) for point in beyond)]
    for point, fewer in pairs:
        known = _ratio(point, fewer)
        if known is None or pays(point, fewer) is not None or point in vague or fewer in vague:
            continue
        low, high, needed = map(times, (*known, _needed(point, fewer)))
        words = (
            f"It is inconclusive whether {counted(point.workers)} bring more than they cost: they are {low} "
            f"to {high} as fast as {fewer.workers}, and need {needed}; {_MORE_RUNS}."
        )
        yield Finding("caveat", "gain-undecided", words, (point.workers, fewer.workers))


def _split(points: Sequence[Point], at: int) -> tuple[Point, Sequence[Point]]:
    """Return the point of `at` workers, and those of more."""
    end = next(point for point in points if point.workers == at)
    return end, [point for point in points if point.workers > at]


def _ratio(point: Point, fewer: Point) -> Interval | None:
    """Return the interval of the rate of a point divided by that of `fewer`."""
    rates = point.samples_per_second, fewer.samples_per_second
    return of_ratio(*rates, interval(point), interval(fewer))


def _needed(point: Point, fewer: Point) -> float:
    """Return the ratio of rates from which on a point has more speedup times efficiency."""
    return math.sqrt(point.workers / fewer.workers)
