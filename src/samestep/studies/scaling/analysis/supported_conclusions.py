"""Decides which conclusions the intervals and the baseline of a study support."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from samestep.studies.scaling.analysis.advice import advice_words, against_phase, chosen
from samestep.studies.scaling.analysis.confidence import Interval
from samestep.studies.scaling.analysis.point_text import counted, is_vague, percent, times
from samestep.studies.scaling.analysis.speedup import fair, knee, rate_ratio
from samestep.studies.scaling.analysis.statements import DIFFER, VAGUE, finding
from samestep.studies.scaling.analysis.study import Finding, Point

_SLOW = {
    "data": (0.10, "waits {} of its time for data"),
    "to_device": (0.10, "copies to the device for {} of its time"),
    "optimizer": (0.30, "spends {} of its time in the optimizer"),
    "other": (0.20, "spends {} of its time outside of data, forward, backward and optimizer"),
}
"""The share of the baseline's step from which on each phase is reported as slow, and the words."""

_BETTER_THAN_IDEAL = 1.15
"""Above this efficiency the baseline was disturbed, rather than the larger runs fast."""


def between(point: Point) -> Interval | None:
    """Return the interval of the speedup of `point`, or None."""
    low, high = point.speedup_low, point.speedup_high
    return None if low is None or high is None else (low, high)


def is_open(point: Point) -> bool:
    """Return whether the interval of `point` is too wide for a conclusion."""
    known = between(point)
    return known is not None and is_vague(known)


def reaches(point: Point, base: Point, bar: float) -> bool:
    """Return whether `point` has the efficiency `bar`, and is faster than the baseline unless it is that."""
    return point.efficiency >= bar and (point is base or point.speedup > base.workers)


def is_decided(point: Point, base: Point, bar: float) -> bool:
    """Return whether the whole interval of `point` reaches `bar` as in `reaches`, or none of it.

    The baseline itself has no interval.
    """
    known = between(point)
    if known is None:
        return False
    low, high = known
    least = max(bar * point.workers, base.workers)
    return high < least or (low >= least and low > base.workers)


def pays(point: Point, fewer: Point) -> bool | None:
    """Return whether `point` has more speedup times efficiency than `fewer`; None if inconclusive."""
    known = rate_ratio(point, fewer)
    if known is None:
        return None
    low, high = known
    needed = _needed(point, fewer)
    return True if low >= needed else False if high <= needed else None


def is_gain_sure(point: Point, base: Point) -> bool:
    """Return whether the runs determine the speed of `point`, and that it brings more than it costs."""
    return between(point) is not None and not is_open(point) and pays(point, base) is True


def outdone(series: Sequence[Point]) -> Point | None:
    """Return the point that is much faster than ideal; None if there is none.

    The baseline was then slow, and nothing can be concluded from the speedups.
    """
    best = max(fair(series), key=lambda point: point.efficiency, default=None)
    return best if best is not None and best.efficiency > _BETTER_THAN_IDEAL else None


def knee_words(points: Sequence[Point]) -> str:
    """Return the position of the knee of `points` as a sentence; empty if nothing can be compared.

    Args:
        points: of one mode and variant, by workers.
    """
    usable = fair(points)
    if len(usable) < 2 or usable[0] is not points[0] or outdone(usable) is not None:
        return ""
    at = knee(usable)
    end, beyond = split_at(usable, at)
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


def split_at(points: Sequence[Point], at: int | None) -> tuple[Point, Sequence[Point]]:
    """Return the point at the knee, and those of more workers; without a knee the last point."""
    end = next((point for point in points if point.workers == at), points[-1])
    return end, [point for point in points if point.workers > end.workers]


def caveats(points: Sequence[Point], *, bar: float | None, at: int | None) -> Iterator[Finding]:
    """Yield what the runs leave inconclusive, and what helps.

    Args:
        points: of one mode and variant, by workers.
        bar: the requested efficiency; None if the knee decides.
        at: the workers at the knee; None if it was not reached.
    """
    yield from _caveats_of_knee(points, at) if bar is None else _caveats_of_bar(points, bar)
    if any(between(point) is None for point in points[1:]):
        yield finding("caveat", "single-runs")


def _caveats_of_bar(points: Sequence[Point], bar: float) -> Iterator[Finding]:
    base, *larger = points
    for point in larger:
        known = between(point)
        if known is None or is_decided(point, base, bar):
            continue
        code, range_of = "bar-undecided", "the efficiency is {} to {}"
        low, high = (percent(end / point.workers) for end in known)
        if bar * point.workers < base.workers:
            code, range_of = "faster-undecided", "they are {} to {} as fast"
            low, high = (times(end / base.workers) for end in known)
        why = VAGUE if is_vague(known) else f"{range_of.format(low, high)}; measure more repeats of each"
        n = counted(point.workers)
        yield finding("caveat", code, [point.workers], n=n, bar=percent(bar), base=base.workers, why=why)


def _caveats_of_knee(points: Sequence[Point], at: int | None) -> Iterator[Finding]:
    vague = [point for point in points[1:] if is_open(point)]
    for point in vague:
        yield finding("caveat", "speed-undecided", [point.workers], n=counted(point.workers))
    end, beyond = split_at(points, at)
    pairs = [*([(end, points[0])] if end is not points[0] else []), *((point, end) for point in beyond)]
    for point, fewer in pairs:
        known = rate_ratio(point, fewer)
        if known is None or pays(point, fewer) is not None or point in vague or fewer in vague:
            continue
        low, high, needed = map(times, (*known, _needed(point, fewer)))
        facts = {"n": counted(point.workers), "low": low, "high": high, "needed": needed}
        workers = [point.workers, fewer.workers]
        yield finding("caveat", "gain-undecided", workers, fewer=fewer.workers, **facts)


def _needed(point: Point, fewer: Point) -> float:
    """Return the ratio of rates from which on a point has more speedup times efficiency."""
    return math.sqrt(point.workers / fewer.workers)


def baseline_findings(series: Sequence[Point]) -> Iterator[Finding]:
    """Yield what is slow at the baseline.

    A speedup is a ratio: a slow step on one worker makes it larger without making the training faster.

    Args:
        series: points of one mode and variant, by workers.
    """
    base = series[0]
    if base.oversubscribed:  # the summary already gives this reason
        return
    alone, n = [base.workers], counted(base.workers)
    if slow := _slow_phases(base):
        advised = chosen([against_phase(name, base) for name in slow])
        words = advice_words(advised)
        yield finding("baseline", "slow-phase", alone, n=n, slow=slowness(base), advice=words)
        yield from (replace(one, workers=tuple(alone)) for one in advised)
    # Workers of a node can share its cores, so each counts for its part of them.
    cores = (base.processors or 0) // -(-base.workers // base.nodes)
    threads = base.threads or 0
    if base.device == "cpu" and threads and cores >= 2 * threads:
        of_each = f"{threads} thread{'' if threads == 1 else 's'}"
        yield finding("baseline", "idle-cores", alone, threads=of_each, cores=cores)
    if best := outdone(series):
        slowed = f" its {threads} threads slow each other down," if threads > 1 else ""
        reached = {"n": counted(best.workers), "efficiency": percent(best.efficiency)}
        workers = [*alone, best.workers]
        yield finding("baseline", "superlinear", workers, base=n, threads=slowed, **reached)


def slowness(base: Point) -> str:
    """Return the phases that take too much of the baseline's step; empty for none."""
    return " and ".join(_SLOW[name][1].format(percent(share)) for name, share in _slow_phases(base).items())


def _slow_phases(base: Point) -> Mapping[str, float]:
    """Return the phases that take too much of the step, with their shares."""
    whole = sum(base.step_s.values())
    shares = {name: base.step_s.get(name, 0.0) / whole for name in _SLOW} if whole else {}
    return {name: share for name, share in shares.items() if share >= _SLOW[name][0]}
