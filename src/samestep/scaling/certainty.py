"""How sure a verdict is: whether intervals leave standing what is said of numbers of workers."""

import math
from collections.abc import Iterator, Sequence

from samestep.scaling.interval import Interval, of_ratio
from samestep.scaling.knee import knee
from samestep.scaling.relate import interval
from samestep.scaling.serial import outdone
from samestep.scaling.study import Point
from samestep.scaling.words import DIFFER, VAGUE, counted, is_vague, percent, times

_MORE_RUNS = "more runs of each would tell"


def between(point: Point) -> Interval | None:
    """Return the interval of the speedup of `point`, or None."""
    low, high = point.speedup_low, point.speedup_high
    return None if low is None or high is None else (low, high)


def is_open(point: Point) -> bool:
    """Return whether the interval of `point` is so wide that its ends say nothing."""
    known = between(point)
    return known is not None and is_vague(known)


def reaches(point: Point, base: Point, bar: float) -> bool:
    """Return whether `point` has an efficiency, and is faster than the fewest workers, or these.

    Args:
        point: a number of workers.
        base: the fewest.
        bar: the efficiency.
    """
    return point.efficiency >= bar and (point is base or point.speedup > base.workers)


def is_decided(point: Point, base: Point, bar: float) -> bool:
    """Return whether all of the interval of `point` reaches an efficiency as `reaches` says, or none of it.

    Args:
        point: another than the fewest workers, which have no interval.
        base: the fewest.
        bar: the efficiency.
    """
    known = between(point)
    if known is None:
        return False
    low, high = known
    least = max(bar * point.workers, base.workers)
    return high < least or (low >= least and low > base.workers)


def pays(point: Point, fewer: Point) -> bool | None:
    """Return whether `point` has more speedup times efficiency than `fewer`; None where that is open."""
    known = _faster(point, fewer)
    if known is None:
        return None
    low, high = known
    needed = _needed(point, fewer)
    return True if low >= needed else False if high <= needed else None


def is_gain_sure(point: Point, base: Point) -> bool:
    """Return whether runs agree how fast `point` is, and that it brings more than it costs."""
    known = between(point)
    return known is not None and not is_vague(known) and pays(point, base) is True


def is_end_sure(points: Sequence[Point], at: int) -> bool:
    """Return whether all points beyond `at` workers surely cost more than they bring."""
    end, beyond = _split(points, at)
    return all(pays(point, end) is False for point in beyond)


def knee_words(points: Sequence[Point]) -> str:
    """Return where the knee of `points` is, as sure as that is; empty where nothing can be compared.

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
        return f"Where the knee is cannot be told: {DIFFER}."
    probably = "Probably the" if unsure else "The"
    if at is None:
        return f"{probably} knee was not reached with {counted(end.workers)}."
    return f"{probably} knee is at {counted(at)}: beyond, more of them cost more than they bring."


def doubts(points: Sequence[Point], *, bar: float | None, at: int) -> Iterator[str]:
    """Yield what a verdict on `points` cannot tell, and what would help.

    Args:
        points: of one mode and variant, by workers.
        bar: the efficiency of which it is told whether it is reached; None where the knee decides.
        at: the workers that the verdict stops at, if so.
    """
    yield from (_doubts_of_knee(points, at) if bar is None else _doubts_of_bar(points, bar))
    if any(between(point) is None for point in points[1:]):
        yield "Without several runs of each number of workers nobody can tell how sure this is."


def _doubts_of_bar(points: Sequence[Point], bar: float) -> Iterator[str]:
    base, *larger = points
    for point in larger:
        known = between(point)
        if known is None or is_decided(point, base, bar):
            continue
        low, high = (end / point.workers for end in known)
        what, between_them = f"reach {percent(bar)}", f"{percent(low)} to {percent(high)}"
        if bar * point.workers < base.workers:
            what = f"are faster than {_fewer(base)}"
            between_them = f"{times(known[0] / base.workers)} to {times(known[1] / base.workers)} as fast"
        why = VAGUE if is_vague(known) else f"{between_them}; {_MORE_RUNS}"
        yield f"Whether {counted(point.workers)} {what} cannot be told: {why}."


def _doubts_of_knee(points: Sequence[Point], at: int) -> Iterator[str]:
    vague = []
    for point in points[1:]:
        known = between(point)
        if known is not None and is_vague(known):
            vague.append(point)
            yield f"How fast {counted(point.workers)} are cannot be told: {VAGUE}."
    end, beyond = _split(points, at)
    pairs = [*([(end, points[0])] if end is not points[0] else []), *((point, end) for point in beyond)]
    for point, fewer in pairs:
        known = _faster(point, fewer)
        if known is None or pays(point, fewer) is not None or point in vague or fewer in vague:
            continue
        low, high = known
        yield (
            f"Whether {counted(point.workers)} bring more than they cost cannot be told: they are "
            f"{times(low)} to {times(high)} as fast as {_fewer(fewer)}, and it takes "
            f"{times(_needed(point, fewer))}; {_MORE_RUNS}."
        )


def _fewer(point: Point) -> str:
    return "one" if point.workers == 1 else str(point.workers)


def _split(points: Sequence[Point], at: int) -> tuple[Point, Sequence[Point]]:
    """Return the point of `at` workers, and those of more."""
    end = next(point for point in points if point.workers == at)
    return end, [point for point in points if point.workers > at]


def _faster(point: Point, fewer: Point) -> Interval | None:
    """Return the interval of how many times as fast as `fewer` a point is."""
    rates = point.samples_per_second, fewer.samples_per_second
    return of_ratio(*rates, interval(point), interval(fewer))


def _needed(point: Point, fewer: Point) -> float:
    """Return how many times as fast a point must be to have as much speedup times efficiency."""
    return math.sqrt(point.workers / fewer.workers)
