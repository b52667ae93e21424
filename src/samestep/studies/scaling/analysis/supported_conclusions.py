"""Decides which conclusions the intervals and the baseline of a study support, and words the summary."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.advice import advice_words, against_phase, chosen
from samestep.studies.scaling.analysis.confidence import Interval, is_vague
from samestep.studies.scaling.analysis.point_text import (
    counted,
    like_each,
    over_words,
    oversubscribed_baseline,
    percent,
    times,
)
from samestep.studies.scaling.analysis.speedup import (
    AS_FAST,
    AsFast,
    fair,
    is_faster,
    knee,
    least_speedup,
    one_process_of,
    rate_ratio,
    same_threads,
    threads_as_fast,
)
from samestep.studies.scaling.analysis.statements import DIFFER, VAGUE, finding, statement
from samestep.studies.scaling.analysis.study import Finding, Point, Worth

# The share of the baseline's step from which on each phase is reported as slow, and the words.
_SLOW = {
    "data": (0.10, "waits {} of its time for data"),
    "to_device": (0.10, "copies to the device for {} of its time"),
    "optimizer": (0.30, "spends {} of its time in the optimizer"),
    "other": (0.20, "spends {} of its time outside of data, forward, backward and optimizer"),
}

_SAME = 0.005  # the largest relative difference of costs and speeds that are reported as equal
_TWICE = 1.995  # costs from here on are a factor, not a percentage
_BETTER_THAN_IDEAL = 1.15  # above this efficiency the baseline was disturbed


def reaches(point: Point, base: Point, bar: float) -> bool:
    """Return whether `point` has the efficiency `bar`, and is faster than the baseline unless it is that."""
    return point.efficiency >= bar and (point is base or is_faster(point, base))


def is_decided(point: Point, base: Point, bar: float) -> bool:
    """Return whether the whole interval of `point` reaches `bar` as in `reaches`, or none of it.

    The baseline itself has no interval.
    """
    alike, known = _over_one_like_each(point, base), point.between
    if alike is None or known is None:
        return False
    needed, least = bar * point.workers, least_speedup(point, base)
    return alike[1] < needed or known[1] < least or (alike[0] >= needed and known[0] > least)


def _over_one_like_each(point: Point, base: Point) -> Interval | None:
    """Return the interval of the speedup over one worker like each of `point`, or None."""
    return same_threads([base, point])[1].between


def pays(point: Point, fewer: Point) -> bool | None:
    """Return whether `point` has more speedup times efficiency than `fewer`; None if inconclusive.

    If `fewer` is one worker, `point` has to be faster than one process on its cores as well.
    """
    answers = [
        None if known is None else True if known[0] >= needed else False if known[1] <= needed else None
        for known, needed, _ in _needed(point, fewer)
    ]
    return False if False in answers else None if None in answers else True


def outdone(series: Sequence[Point]) -> Point | None:
    """Return the point that is much faster than ideal; None if there is none.

    The baseline was then slow, and nothing can be concluded from the speedups.
    """
    best = max(fair(series), key=lambda point: point.efficiency, default=None)
    return best if best is not None and best.efficiency > _BETTER_THAN_IDEAL else None


def knee_words(points: Sequence[Point]) -> str:
    """Return the position of the knee of points by workers in words; empty if nothing can be compared."""
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
    if any(point.is_open for pair in unsure for point in pair):
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
    """Yield what the runs leave inconclusive about a bar, or without one about the knee `at`."""
    yield from _caveats_of_knee(points, at) if bar is None else _caveats_of_bar(points, bar)
    if any(point.between is None for point in points[1:]):
        yield finding("caveat", "single-runs")


def _caveats_of_bar(points: Sequence[Point], bar: float) -> Iterator[Finding]:
    base, *larger = points
    for point in larger:
        alike, known = _over_one_like_each(point, base), point.between
        if alike is None or known is None or is_decided(point, base, bar):
            continue
        code, range_of = "bar-undecided", "the efficiency is {} to {}"
        low, high = (percent(end / point.workers) for end in alike)
        if bar * point.workers < base.workers or alike[0] >= bar * point.workers:
            code, range_of = "faster-undecided", "they are {} to {} as fast"
            low, high = (times(end / base.workers) for end in known)
        why = VAGUE if is_vague(known) else f"{range_of.format(low, high)}; measure more repeats of each"
        facts = {
            "n": counted(point.workers),
            "base": over_words(point, base) or f"{base.workers}",
            "why": why,
        }
        yield finding("caveat", code, [point.workers], bar=percent(bar), **facts)


def _caveats_of_knee(points: Sequence[Point], at: int | None) -> Iterator[Finding]:
    vague = [point for point in points[1:] if point.is_open]
    for point in vague:
        yield finding("caveat", "speed-undecided", [point.workers], n=counted(point.workers))
    end, beyond = split_at(points, at)
    pairs = [*([(end, points[0])] if end is not points[0] else []), *((point, end) for point in beyond)]
    for point, fewer in pairs:
        if pays(point, fewer) is not None or point in vague or fewer in vague:
            continue
        for known, needed, against in _needed(point, fewer):
            if known is None or not known[0] < needed < known[1]:
                continue
            low, high, least = map(times, (*known, needed))
            facts = {"n": counted(point.workers), "low": low, "high": high, "needed": least, "fewer": against}
            yield finding("caveat", "gain-undecided", [point.workers, fewer.workers], **facts)


def _needed(point: Point, fewer: Point) -> Iterator[tuple[Interval | None, float, str]]:
    """Yield the intervals of ratios of rates, from which ratio on `point` pays, and against what."""
    against = like_each(fewer) or str(fewer.workers)
    yield rate_ratio(point, fewer), math.sqrt(point.workers / fewer.workers), against
    if fewer.workers == 1 and point.baseline_cores_of > 1:
        yield point.between, AS_FAST, over_words(point, fewer)


def baseline_findings(series: Sequence[Point], one_process: Sequence[Point] = ()) -> Iterator[Finding]:
    """Yield what is slow at the baseline of points by workers.

    Idle cores are no finding if one process on more cores was measured too.

    A speedup is a ratio: a slow step on one worker makes it larger without making the training faster.
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
    is_measured = bool(one_process_of(series, one_process))
    if base.device == "cpu" and threads and cores >= 2 * threads and not is_measured:
        of_each = f"{threads} thread{'' if threads == 1 else 's'}"
        who = "The one worker" if base.workers == 1 else f"Each of {n}"
        yield finding("baseline", "idle-cores", alone, who=who, threads=of_each, cores=cores)
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


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one mode and variant; its point is None if there is no conclusion."""

    code: str
    words: str
    point: Point | None = None
    is_certain: bool = False


def worth_of(bar: float, series: Sequence[Point]) -> Iterator[Worth]:
    """Yield whether each point of one mode and variant reaches a bar."""
    base = series[0]
    is_doubtful = base.oversubscribed or outdone(series) is not None
    for point in series:
        is_sure = is_decided(point, base, bar) and not (point.oversubscribed or is_doubtful)
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
    if (found := threads_as_fast(series, one_process)) is not None:
        return None if found.is_open else base.workers
    usable = (point for point in fair(series) if reaches(point, base, bar))
    sure = (p for p in usable if p is base or not p.is_open or is_decided(p, base, bar))
    return max((point.workers for point in sure), default=None)


def summary(
    series: Sequence[Point], bar: float | None, at: int | None, one_process: Sequence[Point] = ()
) -> Summary:
    """Return the summary of the points of one mode and variant, decided by a bar or by the knee `at`.

    One process on all cores that is as fast comes first, whatever the bar.
    """
    base, usable = series[0], fair(series)
    n = counted(base.workers)
    if len(series) == 1:
        return _summarized("single-point", n=n)
    if base.oversubscribed or len(usable) < 2:
        code = "baseline-oversubscribed" if base.oversubscribed else "all-oversubscribed"
        return _summarized(code, n=n, why=oversubscribed_baseline(base))
    if (found := threads_as_fast(usable, one_process)) is not None:
        return _by_threads(found, base)
    if best := outdone(usable):
        return _summarized("superlinear", n=counted(best.workers), efficiency=percent(best.efficiency))
    return _by_knee(usable, at) if bar is None else _by_bar(usable, bar)


def _summarized(code: str, point: Point | None = None, *, is_certain: bool = False, **facts: Any) -> Summary:
    """Return a summary; `n` is its point's number of workers, and it is probable unless it is certain."""
    if point is not None:
        facts["n"] = counted(point.workers)
    facts = {"probably": "" if is_certain else "probably ", **facts}
    return Summary(code, statement("summary", code, **facts), point, is_certain)


def _by_threads(found: AsFast, base: Point) -> Summary:
    if found.is_open:
        return _summarized("inconclusive", what="more workers pay on this machine's cores")
    gain = _gain(found.workers, base)
    return _summarized("threads-as-fast", found.workers, is_certain=found.is_certain, gain=gain)


def _by_knee(usable: Sequence[Point], at: int | None) -> Summary:
    base = usable[0]
    end, beyond = split_at(usable, at)
    is_sure = all(pays(point, end) is False for point in beyond)
    is_unknown = any(point.is_open and pays(point, end) is None for point in beyond)
    if end is base:
        few = f"{counted(base.workers)} {'is' if base.workers == 1 else 'are'} enough"
        if is_unknown:
            return _summarized("inconclusive", what=few)
        gain = _gain(usable[1], base)
        return _summarized("baseline-enough", usable[1], is_certain=is_sure, few=few, gain=gain)
    if end.is_open and not pays(end, base):
        return _summarized("inconclusive", what=f"{counted(end.workers)} are worth it")
    is_certain = end.between is not None and not end.is_open and pays(end, base) is True
    probably = "" if is_sure else "probably "
    further = f"; beyond {at}, more workers {probably}cost more than they bring" if beyond else ""
    if is_unknown:
        further = f"; it is inconclusive whether more than {end.workers} bring more than they cost"
    return _summarized(
        "speedup",
        end,
        is_certain=is_certain and is_sure,
        probably="" if is_certain or end.is_open else "probably ",
        gain=_gain(end, base),
        beyond=further,
    )


def _by_bar(usable: Sequence[Point], bar: float) -> Summary:
    base, required = usable[0], percent(bar)
    largest = largest_worth(usable, bar) or base.workers
    undecided = [point for point in usable if point.workers > largest and not is_decided(point, base, bar)]
    if largest == base.workers:
        if any(point.is_open for point in undecided):
            what = f"more workers than {base.workers} are worth it at a bar of {required}"
            return _summarized("inconclusive", what=what)
        gain = _gain(usable[1], base)
        return _summarized("not-worth", usable[1], is_certain=not undecided, gain=gain, bar=required)
    best = next(point for point in usable if point.workers == largest)
    is_sure = is_decided(best, base, bar)
    is_all = all(reaches(point, base, bar) for point in usable if point.workers < largest)
    return _summarized(
        "worth",
        best,
        is_certain=is_sure,
        bar=required,
        reach=("at least " if undecided and is_sure else "") + ("up to" if is_all else "with"),
        gain=_gain(best, base),
    )


def _gain(point: Point, base: Point) -> str:
    """Return speedup and cost of a point as a predicate."""
    alike = like_each(base) or ("one" if base.workers == 1 else str(base.workers))
    slow = slowness(base)
    slow_one = alike + (f", whose step {slow}" if slow else "")
    is_over_process = point.baseline_cores_of > 1
    one = over_words(point, base) if is_over_process else slow_one
    is_strong = point.mode == "strong"
    verb = "train" if is_strong else "process samples"
    known = point.between
    if known is not None and is_vague(known):
        low, high = (_factor(end / base.workers) for end in known)
        return f"{verb} {low} to {high} times as fast as {one}"
    factor = point.speedup / base.workers
    if abs(factor - 1) < _SAME:
        faster = f"{verb} as fast as {one}"
    elif factor > 1:
        faster = f"{verb} {_factor(factor)} times as fast as {one}"
    else:
        same = "" if is_strong else "for the same samples "
        faster = f"take {_factor(1 / factor)} times as long {same}as {one}"
    if is_over_process:  # the cost is that of the same work on the cores of one worker like each
        ratio = _factor(point.efficiency * point.workers)
        return (
            f"{faster}{_epoch(point, base)}; that is {ratio} times as fast as {slow_one}, at {_cost(point)}"
        )
    return f"{faster}{_epoch(point, base)}, at {_cost(point)}"


def _factor(factor: float) -> str:
    return times(factor).removesuffix("x")


def _epoch(point: Point, base: Point) -> str:
    hours = [one.worker_hours_per_epoch for one in (point, base)]
    if None in hours:
        return ""
    now, then = (3600 * (one.worker_hours_per_epoch or 0) / one.workers for one in (point, base))
    if point.baseline_cores_of > 1:
        then = now * point.speedup
    return f" (an epoch in {seconds_text(now)} instead of {seconds_text(then)})"


def _cost(point: Point) -> str:
    more = 1 / point.efficiency - 1
    if abs(more) < _SAME:
        return "the same worker-hours"
    if 1 + more >= _TWICE:
        return f"{_factor(1 + more)} times the worker-hours for the same work"
    return f"{percent(abs(more))} {'more' if more > 0 else 'fewer'} worker-hours for the same work"
