"""Draws the conclusion of a study from its points: a code with one sentence.

With a bar, the efficiency from which on workers are worth it, the interval of the efficiency decides. Without
one that of speedup times efficiency decides, against the baseline and, for the knee, for each larger number.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from samestep.base.units import counted, percent
from samestep.scaling.analysis.points import gain, over_words, times
from samestep.scaling.analysis.speedup import (
    AS_FAST,
    baseline_of,
    fair,
    is_faster,
    knee,
    least_speedup,
    over_one_process,
    rate_ratio,
    relate,
    same_threads,
    series_of,
    slower_by,
    threads_as_fast,
    with_losses,
)
from samestep.scaling.analysis.study import Interval, Point, Study, Verdict, Worth

SENTENCES: Mapping[str, str] = {
    "speedup": "{gain}.",
    "knee": "{gain}; beyond, more workers cost more than they bring.",
    "baseline-enough": "More workers than the baseline cost more than they bring. {gain}.",
    "worth": "Worth it at a bar of {bar}. {gain}.",
    "not-worth": "Not worth it at a bar of {bar}. {gain}.",
    "threads-as-fast": "More workers do not pay on these cores; they can on several nodes or GPUs. {gain}.",
    "inconclusive": "No conclusion: the runs differ too much; measure more repeats on an idle machine.",
    "superlinear": "No conclusion: the baseline was disturbed or short of cache; measure again. {gain}.",
    "single-point": "No conclusion: only one number of workers was measured.",
    "baseline-oversubscribed": "No conclusion: the baseline was oversubscribed; use fewer threads.",
    "all-oversubscribed": "No conclusion: all larger numbers of workers were oversubscribed.",
}
"""The sentence of each code; the reference has a table of the codes."""

UNCERTAIN = "The intervals do not decide this; measure more repeats."
"""Follows the sentence of a conclusion that is not certain."""

APART = "The slowest run of {baseline} was {factor} as fast as the fastest of {workers}."
"""Follows the sentence of a conclusion that is certain although its interval is wide."""

NO_CONCLUSIONS = (
    *("inconclusive", "superlinear", "single-point"),
    *("baseline-oversubscribed", "all-oversubscribed"),
)
"""Codes from which nothing follows."""

_EXACTLY = 1 - 1e-9  # the part of a bar that reaches it: quotients of times are rounded
_BETTER_THAN_IDEAL = 1.15  # above this efficiency the baseline was disturbed


class _Conclusion(NamedTuple):
    code: str
    point: Point | None = None
    is_certain: bool = False


def conclude(study: Study, bar: float | None = None) -> Study:
    """Return `study` with everything that follows from its points; it can be repeated with another bar.

    The bar is the efficiency from which on workers are worth it; without one, the knee decides.
    """
    points, one_process = over_one_process(with_losses(relate(study.points)), study.one_process)
    return replace(study, points=points, one_process=one_process, verdict=judge(points, bar, one_process))


def judge(
    points: Sequence[Point], bar: float | None = None, one_process: Sequence[Point] = ()
) -> Verdict | None:
    """Return the verdict on related points; None if there are none.

    Of several variants it is about the fastest, at the most workers that all of them were measured with.
    One worker with the cores of several (`one_process`) can be as fast as they are.
    """
    all_series = list(series_of(points).values())
    if not all_series:
        return None
    series = _fastest([points for points in all_series if points[0].mode == all_series[0][0].mode])
    code, point, is_certain = _concluded(series, bar, one_process)
    reason = "" if code in NO_CONCLUSIONS else UNCERTAIN
    if is_certain:
        reason = "" if point is None else _apart(point, series[0], one_process)
    required = "" if bar is None else percent(bar)
    reached = "" if point is None else gain(point, series[0])
    sentence = SENTENCES[code].format(gain=reached, bar=required)
    label = f"{series[0].variant}: " if series[0].variant else ""
    return Verdict(
        code=code,
        sentence=f"{label}{sentence} {reason}".rstrip(),
        is_certain=is_certain,
        workers=None if point is None or code in NO_CONCLUSIONS else point.workers,
        variant=series[0].variant,
        knee=knee(series),
        bar=bar,
        worth=()
        if bar is None
        else tuple(chain.from_iterable(worth_of(bar, points, one_process) for points in all_series)),
        largest_worth=None if bar is None else largest_worth(series, bar, one_process),
    )


def worth_of(bar: float, series: Sequence[Point], one_process: Sequence[Point] = ()) -> Iterator[Worth]:
    """Yield whether each point of one mode and variant reaches a bar."""
    base = series[0]
    is_doubtful = base.oversubscribed or outdone(series) is not None
    for point in series:
        is_sure = is_decided(point, base, bar, one_process) and not (point.oversubscribed or is_doubtful)
        yield Worth(
            workers=point.workers,
            mode=point.mode,
            variant=point.variant,
            efficiency=point.efficiency,
            is_worth=reaches(point, base, bar),
            is_certain=is_sure or (point is base and not base.oversubscribed),
        )


def largest_worth(series: Sequence[Point], bar: float, one_process: Sequence[Point] = ()) -> int | None:
    """Return the most workers that reach a bar, without points that are oversubscribed or inconclusive."""
    base = series[0]
    if base.oversubscribed or outdone(series) is not None:
        return None
    if (as_fast := threads_as_fast(series, one_process)) is not None:
        return None if as_fast.is_open else base.workers
    usable = (point for point in fair(series) if reaches(point, base, bar))
    sure = (p for p in usable if p is base or not p.is_open or is_decided(p, base, bar))
    return max((point.workers for point in sure), default=None)


def reaches(point: Point, base: Point, bar: float) -> bool:
    """Return whether `point` has the efficiency `bar`, and is faster than the baseline unless it is that."""
    return point.efficiency >= bar * _EXACTLY and (point is base or is_faster(point, base))


def is_decided(point: Point, base: Point, bar: float, one_process: Sequence[Point] = ()) -> bool:
    """Return whether the whole interval of `point` reaches `bar` as in `reaches`, or none of it.

    The baseline itself has no interval. A point that is slower in all runs reaches no bar.
    """
    if slower_by(point, baseline_of(point, base, one_process)) is not None:
        return True
    efficient, speedup = same_threads([base, point])[1].between, point.between
    if efficient is None or speedup is None:
        return False
    needed, least = bar * _EXACTLY * point.workers, least_speedup(point, base)
    return efficient[1] < needed or speedup[1] < least or (efficient[0] >= needed and speedup[0] > least)


def pays(point: Point, fewer: Point) -> bool | None:
    """Return whether `point` has more speedup times efficiency than `fewer`; None if inconclusive.

    If `fewer` is one worker, `point` has to be faster than one process on its cores as well.
    """
    if slower_by(point, fewer) is not None:
        return False
    answers = [
        None if known is None else True if known[0] >= needed else False if known[1] <= needed else None
        for known, needed in _needed(point, fewer)
    ]
    return False if False in answers else None if None in answers else True


def outdone(series: Sequence[Point]) -> Point | None:
    """Return the point that is much faster than ideal; None if there is none.

    The baseline was then slow, and nothing can be concluded from the speedups.
    """
    best = max(fair(series), key=lambda point: point.efficiency, default=None)
    return best if best is not None and best.efficiency > _BETTER_THAN_IDEAL else None


def _needed(point: Point, fewer: Point) -> Iterator[tuple[Interval | None, float]]:
    """Yield the intervals of ratios of rates, and from which ratio on `point` pays."""
    yield rate_ratio(point, fewer), math.sqrt(point.workers / fewer.workers)
    if fewer.workers == 1 and point.baseline_cores_of > 1:
        yield point.between, AS_FAST


def _concluded(series: Sequence[Point], bar: float | None, one_process: Sequence[Point]) -> _Conclusion:
    """Return the conclusion of one mode and variant.

    One process on all cores that is as fast comes first, whatever the bar.
    """
    usable = fair(series)
    if series[0].oversubscribed or len(usable) < 2:
        code = "baseline" if series[0].oversubscribed else "all"
        return _Conclusion("single-point" if len(series) == 1 else f"{code}-oversubscribed")
    if (as_fast := threads_as_fast(usable, one_process)) is not None:
        known = _Conclusion("threads-as-fast", as_fast.workers, as_fast.is_certain)
        return _Conclusion("inconclusive") if as_fast.is_open else known
    if (best := outdone(usable)) is not None:
        return _Conclusion("superlinear", best)
    return _by_knee(usable, knee(series)) if bar is None else _by_bar(usable, bar, one_process)


def _by_knee(usable: Sequence[Point], at: int | None) -> _Conclusion:
    base = usable[0]
    end = next((point for point in usable if point.workers == at), usable[-1])
    beyond = [point for point in usable if point.workers > end.workers]
    is_sure = all(pays(point, end) is False for point in beyond)
    is_open = any(point.is_open and pays(point, end) is None for point in beyond)
    if end is base:
        return _Conclusion("inconclusive") if is_open else _Conclusion("baseline-enough", usable[1], is_sure)
    if end.is_open and not pays(end, base):
        return _Conclusion("inconclusive")
    is_certain = end.between is not None and not end.is_open and pays(end, base) is True
    return _Conclusion("knee" if beyond and not is_open else "speedup", end, is_certain and is_sure)


def _by_bar(usable: Sequence[Point], bar: float, one_process: Sequence[Point]) -> _Conclusion:
    base = usable[0]
    largest = largest_worth(usable, bar) or base.workers
    larger = [point for point in usable if point.workers > largest]
    undecided = [point for point in larger if not is_decided(point, base, bar, one_process)]
    if largest > base.workers:
        best = next(point for point in usable if point.workers == largest)
        return _Conclusion("worth", best, is_decided(best, base, bar))
    if any(point.is_open for point in undecided):
        return _Conclusion("inconclusive")
    return _Conclusion("not-worth", usable[1], not undecided)


def _apart(point: Point, base: Point, one_process: Sequence[Point]) -> str:
    """Return in a sentence how far apart the runs are that decide in spite of a wide interval; or nothing."""
    factor = slower_by(point, baseline_of(point, base, one_process)) if point.is_open else None
    if factor is None:
        return ""
    baseline = over_words(point, base) or "the baseline"
    workers = counted(point.workers, "worker")
    return APART.format(baseline=baseline, factor=times(factor), workers=workers)


def _fastest(variants: Sequence[Sequence[Point]]) -> Sequence[Point]:
    """Return the points of the variant that is the fastest at the most workers that all have."""
    rates = [{point.workers: point.samples_per_second for point in fair(points)} for points in variants]
    most = max(set.intersection(*map(set, rates)), default=None)
    if most is None:
        return variants[0]
    return variants[max(range(len(variants)), key=lambda number: rates[number][most])]
