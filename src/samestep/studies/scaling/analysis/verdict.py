"""Draws the conclusions of a study from its points: a summary, advice, and the caveats of both."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.advice import advice, advice_words
from samestep.studies.scaling.analysis.model_fits import fits
from samestep.studies.scaling.analysis.notes import notes
from samestep.studies.scaling.analysis.overhead_causes import with_losses
from samestep.studies.scaling.analysis.point_text import (
    counted,
    is_vague,
    overhead,
    oversubscribed_baseline,
    percent,
    speed,
    times,
)
from samestep.studies.scaling.analysis.speedup import fair, knee, relate, series_of
from samestep.studies.scaling.analysis.statements import statement
from samestep.studies.scaling.analysis.study import Finding, Point, Study, Verdict, Worth
from samestep.studies.scaling.analysis.supported_conclusions import (
    baseline_findings,
    between,
    caveats,
    is_decided,
    is_gain_sure,
    is_open,
    outdone,
    pays,
    reaches,
    slowness,
    split_at,
)
from samestep.studies.scaling.analysis.variants import comparisons

_PEERS = 3
"""The number of other variants whose efficiency is shown beside that of the fastest."""

_SAME = 0.005
"""The largest relative difference of costs and speeds that are reported as equal."""

_TWICE = 1.995
"""Costs from here on are a factor, not a percentage."""


@dataclass(frozen=True, slots=True)
class _Summary:
    """The summary of one mode and variant.

    Args:
        code: of its sentence.
        words: the sentence.
        point: the number of workers that it is about; None if there is no conclusion.
        is_certain: whether the intervals decide it.
    """

    code: str
    words: str
    point: Point | None = None
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class _Conclusions:
    """The conclusions from the points of one mode and variant."""

    series: Sequence[Point]
    knee: int | None
    summary: _Summary
    overhead: str
    advised: Sequence[Finding]
    caveats: Sequence[Finding]

    def advice_words(self, known: Collection[str] = ()) -> str:
        """Return overhead, advice and caveats as sentences, without caveats that are `known`."""
        return " ".join([self.overhead, *(one.words for one in self.caveats if one.words not in known)])

    def findings(self) -> Iterator[Finding]:
        """Yield advice and caveats with their mode and variant."""
        first = self.series[0]
        for one in (*self.advised, *self.caveats):
            yield replace(one, mode=first.mode, variant=first.variant)


def conclude(study: Study, bar: float | None = None) -> Study:
    """Return `study` with everything that follows from its points; it can be repeated with another bar.

    Args:
        study: with points from `points_from_runs` or `points_from_times`.
        bar: the efficiency from which on workers are worth it, as ``--worth`` requests.
    """
    points = with_losses(relate(study.points))
    study = replace(study, points=points, fit=fits(points), verdict=judge(points, bar))
    return study.with_notes(notes(points))


def judge(points: Sequence[Point], bar: float | None = None) -> Verdict | None:
    """Return the verdict on related points; None if there are none.

    Of several variants it is about the fastest, at the most workers that all of them were measured with.

    Args:
        points: with their losses.
        bar: the efficiency from which on workers are worth it; None to judge by the knee.
    """
    all_series = list(series_of(points).values())
    if not all_series:
        return None
    first = _fastest([series for series in all_series if series[0].mode == all_series[0][0].mode])
    others = [series for series in all_series if series is not first]
    main, *rest = (_conclusions(series, bar) for series in [first, *others])
    modes = {series[0].mode for series in all_series}
    label = _label(first[0], modes) if first[0].variant else ""
    known = [one.words for one in main.caveats]
    baseline, compared = list(baseline_findings(first)), list(comparisons(points))
    return Verdict(
        manager=label + _beside(main.summary, others),
        engineer=label + main.advice_words(),
        serial=" ".join(one.words for one in baseline if one.kind == "baseline"),
        others=tuple(_label(one.series[0], modes) + one.advice_words(known) for one in rest),
        comparisons=tuple(one.words for one in compared),
        code=main.summary.code,
        is_certain=main.summary.is_certain,
        workers=main.summary.point.workers if main.summary.point else None,
        findings=(*baseline, *(found for one in (main, *rest) for found in one.findings()), *compared),
        variant=first[0].variant,
        knee=main.knee,
        bar=bar,
        worth=() if bar is None else tuple(one for series in all_series for one in _worth(bar, series)),
        largest_worth=None if bar is None else _largest_worth(first, bar),
    )


def _conclusions(series: Sequence[Point], bar: float | None) -> _Conclusions:
    usable, at = fair(series), knee(series)
    summary = _summary(series, bar, at)
    unknown: Sequence[Finding] = ()
    if len(usable) > 1 and not series[0].oversubscribed:
        unknown = list(caveats(usable, bar=bar, at=at))
    point = summary.point or (usable or series)[-1]
    return _Conclusions(series, at, summary, *_overhead(series, point), unknown)


def _fastest(variants: Sequence[Sequence[Point]]) -> Sequence[Point]:
    """Return the points of the variant that is the fastest at the most workers that all have."""
    rates = [{point.workers: point.samples_per_second for point in fair(one)} for one in variants]
    most = max(set.intersection(*map(set, rates)), default=None)
    if most is None:
        return variants[0]
    return variants[max(range(len(variants)), key=lambda number: rates[number][most])]


def _beside(summary: _Summary, others: Sequence[Sequence[Point]]) -> str:
    """Return the summary with the efficiency of as many workers in other variants."""
    if (about := summary.point) is None:
        return summary.words
    peers = [
        f"{point.variant or 'without'}: {percent(point.efficiency)}"
        for series in others
        for point in series
        if (point.mode, point.workers) == (about.mode, about.workers)
        and not (is_open(point) or point.oversubscribed or series[0].oversubscribed)
    ]
    return "; ".join([summary.words.removesuffix("."), *peers[:_PEERS]]) + "."


def _label(point: Point, modes: Collection[str]) -> str:
    """Return the variant of a sentence, with the mode if there are several modes or no variant."""
    mode = point.mode if len(modes) > 1 or not point.variant else ""
    return " ".join(filter(None, (mode, point.variant))) + ": "


def _worth(bar: float, series: Sequence[Point]) -> Iterator[Worth]:
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


def _largest_worth(series: Sequence[Point], bar: float) -> int | None:
    """Return the most workers that reach a bar, without points that are oversubscribed or inconclusive."""
    base = series[0]
    if base.oversubscribed or outdone(series) is not None:
        return None
    usable = (point for point in fair(series) if reaches(point, base, bar))
    sure = (p for p in usable if p is base or not is_open(p) or is_decided(p, base, bar))
    return max((point.workers for point in sure), default=None)


def _overhead(series: Sequence[Point], point: Point) -> tuple[str, Sequence[Finding]]:
    """Return the overhead at a point and at the next number of workers, with what to try."""
    base = series[0]
    if len(series) == 1:
        return "For a speedup, measure another number of workers too.", ()
    if point is base:
        return f"{speed(series[-1])}, oversubscribed.", ()
    if base.oversubscribed:
        return f"{speed(point)}; the overhead is unknown: {oversubscribed_baseline(base)}.", ()
    if is_open(point):
        return f"{speed(point)} by the medians; the overhead is inconclusive.", ()
    advised = [replace(one, workers=(point.workers,)) for one in advice(point, base)]
    parts = [f"{speed(point)}.", overhead(point), advice_words(advised)]
    following = next((one for one in fair(series) if one.workers > point.workers), None)
    if following is not None:
        parts += [f"{speed(following)}.", "" if is_open(following) else overhead(following)]
    return " ".join(filter(None, parts)), advised


def _summary(series: Sequence[Point], bar: float | None, at: int | None) -> _Summary:
    """Return the summary of the points of one mode and variant, decided by a bar or by the knee `at`."""
    base, usable = series[0], fair(series)
    n = counted(base.workers)
    if len(series) == 1:
        return _summarized("single-point", n=n)
    if base.oversubscribed:
        return _summarized("baseline-oversubscribed", why=oversubscribed_baseline(base))
    if len(usable) < 2:
        return _summarized("all-oversubscribed", n=n)
    if best := outdone(usable):
        return _summarized("superlinear", n=counted(best.workers), efficiency=percent(best.efficiency))
    return _by_knee(usable, at) if bar is None else _by_bar(usable, bar)


def _summarized(code: str, point: Point | None = None, *, is_certain: bool = False, **facts: Any) -> _Summary:
    """Return a summary; `n` is its point's number of workers."""
    if point is not None:
        facts["n"] = counted(point.workers)
    return _Summary(code, statement("summary", code, **facts), point, is_certain)


def _by_knee(usable: Sequence[Point], at: int | None) -> _Summary:
    base = usable[0]
    end, beyond = split_at(usable, at)
    is_sure = all(pays(point, end) is False for point in beyond)
    is_unknown = any(is_open(point) and pays(point, end) is None for point in beyond)
    probably = "" if is_sure else "probably "
    if end is base:
        few = f"{counted(base.workers)} {'is' if base.workers == 1 else 'are'} enough"
        if is_unknown:
            return _summarized("inconclusive", what=few)
        facts = {"probably": probably, "few": few, "gain": _gain(usable[1], base)}
        return _summarized("baseline-enough", usable[1], is_certain=is_sure, **facts)
    if is_open(end) and not pays(end, base):
        return _summarized("inconclusive", what=f"{counted(end.workers)} are worth it")
    is_certain = is_gain_sure(end, base)
    further = f"; beyond {at}, more workers {probably}cost more than they bring" if beyond else ""
    if is_unknown:
        further = f"; it is inconclusive whether more than {end.workers} bring more than they cost"
    return _summarized(
        "speedup",
        end,
        is_certain=is_certain and is_sure,
        probably="" if is_certain or is_open(end) else "probably ",
        gain=_gain(end, base),
        beyond=further,
    )


def _by_bar(usable: Sequence[Point], bar: float) -> _Summary:
    base, required = usable[0], percent(bar)
    largest = _largest_worth(usable, bar) or base.workers
    undecided = [point for point in usable if point.workers > largest and not is_decided(point, base, bar)]
    if largest == base.workers:
        if any(map(is_open, undecided)):
            what = f"more workers than {base.workers} are worth it at a bar of {required}"
            return _summarized("inconclusive", what=what)
        facts = {"probably": "probably " if undecided else "", "bar": required}
        gain = _gain(usable[1], base)
        return _summarized("not-worth", usable[1], is_certain=not undecided, gain=gain, **facts)
    best = next(point for point in usable if point.workers == largest)
    is_sure = is_decided(best, base, bar)
    is_all = all(reaches(point, base, bar) for point in usable if point.workers < largest)
    return _summarized(
        "worth",
        best,
        is_certain=is_sure,
        probably="" if is_sure else "probably ",
        bar=required,
        reach=("at least " if undecided and is_sure else "") + ("up to" if is_all else "with"),
        gain=_gain(best, base),
    )


def _gain(point: Point, base: Point) -> str:
    """Return speedup and cost of a point as a predicate."""
    slow = slowness(base)
    one = ("one" if base.workers == 1 else str(base.workers)) + (f", whose step {slow}" if slow else "")
    is_strong = point.mode == "strong"
    verb = "train" if is_strong else "process samples"
    known = between(point)
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
    return f"{faster}{_epoch(point, base)}, at {_cost(point)}"


def _factor(factor: float) -> str:
    return times(factor).removesuffix("x")


def _epoch(point: Point, base: Point) -> str:
    hours = [one.worker_hours_per_epoch for one in (point, base)]
    if None in hours:
        return ""
    now, then = (
        seconds_text(3600 * (one.worker_hours_per_epoch or 0) / one.workers) for one in (point, base)
    )
    return f" (an epoch in {now} instead of {then})"


def _cost(point: Point) -> str:
    more = 1 / point.efficiency - 1
    if abs(more) < _SAME:
        return "the same worker-hours"
    if 1 + more >= _TWICE:
        return f"{_factor(1 + more)} times the worker-hours for the same work"
    return f"{percent(abs(more))} {'more' if more > 0 else 'fewer'} worker-hours for the same work"
