"""Draws the conclusions of a study: a summary, advice, and the caveats of both."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from samestep.studies.scaling.analysis.advice import advice, advice_words
from samestep.studies.scaling.analysis.baseline_check import baseline_findings, outdone
from samestep.studies.scaling.analysis.cost_summary import Summary, largest_worth, summary
from samestep.studies.scaling.analysis.knee import knee
from samestep.studies.scaling.analysis.point_text import overhead, oversubscribed_baseline, percent, speed
from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.study import Finding, Point, Verdict, Worth
from samestep.studies.scaling.analysis.supported_conclusions import caveats, is_decided, is_open, reaches
from samestep.studies.scaling.analysis.variants import comparisons

_PEERS = 3
"""The number of other variants whose efficiency is shown beside that of the fastest."""


class _Conclusions(NamedTuple):
    """The conclusions from the points of one mode and variant."""

    first: Point
    knee: int | None
    summary: Summary
    overhead: str
    advised: Sequence[Finding]
    caveats: Sequence[Finding]

    def advice_words(self, known: Collection[str] = ()) -> str:
        """Return overhead, advice and caveats as sentences, without caveats that are `known`."""
        return " ".join([self.overhead, *(one.words for one in self.caveats if one.words not in known)])

    def findings(self) -> Iterator[Finding]:
        """Yield advice and caveats with their mode and variant."""
        for one in (*self.advised, *self.caveats):
            yield replace(one, mode=self.first.mode, variant=self.first.variant)


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
        others=tuple(_label(one.first, modes) + one.advice_words(known) for one in rest),
        comparisons=tuple(one.words for one in compared),
        code=main.summary.code,
        is_certain=main.summary.is_certain,
        workers=main.summary.point.workers if main.summary.point else None,
        findings=(*baseline, *(found for one in (main, *rest) for found in one.findings()), *compared),
        variant=first[0].variant,
        knee=main.knee,
        bar=bar,
        worth=() if bar is None else tuple(one for series in all_series for one in _worth(bar, series)),
        largest_worth=None if bar is None else largest_worth(first, bar),
    )


def _conclusions(series: Sequence[Point], bar: float | None) -> _Conclusions:
    usable, at = _usable(series), knee(series)
    found = summary(series, bar=bar, at=at)
    unknown: Sequence[Finding] = ()
    if len(usable) > 1 and not series[0].oversubscribed:
        unknown = list(caveats(usable, bar=bar, at=usable[-1].workers if at is None else at))
    point = found.point or (usable or series)[-1]
    return _Conclusions(series[0], at, found, *_overhead(series, point), unknown)


def _usable(series: Sequence[Point]) -> list[Point]:
    return [point for point in series if not point.oversubscribed]


def _fastest(variants: Sequence[Sequence[Point]]) -> Sequence[Point]:
    """Return the points of the variant that is the fastest at the most workers that all have."""
    rates = [{point.workers: point.samples_per_second for point in _usable(one)} for one in variants]
    shared = set.intersection(*map(set, rates))
    most = max(shared, default=None)
    if most is None:
        return variants[0]
    return variants[max(range(len(variants)), key=lambda number: rates[number][most])]


def _beside(found: Summary, others: Sequence[Sequence[Point]]) -> str:
    """Return the summary with the efficiency of as many workers in other variants."""
    if found.point is None:
        return found.words
    alike = [
        point
        for series in others
        for point in series
        if (point.mode, point.workers) == (found.point.mode, found.point.workers)
        and not (is_open(point) or point.oversubscribed or series[0].oversubscribed)
    ]
    peers = [f"{point.variant or 'without'}: {percent(point.efficiency)}" for point in alike[:_PEERS]]
    return "; ".join([found.words.removesuffix("."), *peers]) + "."


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
    following = next((one for one in _usable(series) if one.workers > point.workers), None)
    if following is not None:
        parts += [f"{speed(following)}.", "" if is_open(following) else overhead(following)]
    return " ".join(filter(None, parts)), advised
