"""Draws the conclusions of a study from its points: a summary, advice, and the caveats of both."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from samestep.studies.scaling.analysis.advice import advice, advice_words
from samestep.studies.scaling.analysis.model_fits import fits
from samestep.studies.scaling.analysis.notes import notes
from samestep.studies.scaling.analysis.overhead_causes import with_losses
from samestep.studies.scaling.analysis.point_text import (
    counted,
    overhead,
    oversubscribed_baseline,
    percent,
    speed,
)
from samestep.studies.scaling.analysis.speedup import fair, knee, over_one_process, relate, series_of
from samestep.studies.scaling.analysis.study import Finding, Point, Study, Verdict
from samestep.studies.scaling.analysis.supported_conclusions import (
    Summary,
    baseline_findings,
    caveats,
    largest_worth,
    summary,
    worth_of,
)
from samestep.studies.scaling.analysis.variants import comparisons

_WITHOUT_RESULT = {"run-failed", "run-empty"}  # codes of notes on runs that are not among the points
_PEERS = 3  # the number of other variants whose efficiency is shown beside that of the fastest


@dataclass(frozen=True, slots=True)
class _Conclusions:
    """The conclusions from the points of one mode and variant."""

    series: Sequence[Point]
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
        first = self.series[0]
        for one in (*self.advised, *self.caveats):
            yield replace(one, mode=first.mode, variant=first.variant)


def conclude(study: Study, bar: float | None = None) -> Study:
    """Return `study` with everything that follows from its points; it can be repeated with another bar.

    The bar is the efficiency from which on workers are worth it; without one, the knee decides.
    """
    points, one_process = over_one_process(with_losses(relate(study.points)), study.one_process)
    failed = {number for one in study.findings if one.code in _WITHOUT_RESULT for number in one.workers}
    verdict = judge(points, bar, one_process, sorted(failed))
    study = replace(study, points=points, one_process=one_process, fit=fits(points), verdict=verdict)
    return study.with_notes(notes(points))


def judge(
    points: Sequence[Point],
    bar: float | None = None,
    one_process: Sequence[Point] = (),
    failed: Sequence[int] = (),
) -> Verdict | None:
    """Return the verdict on related points with their losses; None if there are none.

    Of several variants it is about the fastest, at the most workers that all of them were measured with.
    One worker with the cores of several (`one_process`) can be as fast as they are. Runs on `failed`
    workers gave no result.
    """
    all_series = list(series_of(points).values())
    if not all_series:
        return None
    first = _fastest([series for series in all_series if series[0].mode == all_series[0][0].mode])
    others = [series for series in all_series if series is not first]
    main, *rest = (_conclusions(series, bar, one_process, failed) for series in [first, *others])
    modes = {series[0].mode for series in all_series}
    label = _label(first[0], modes) if first[0].variant else ""
    known = [one.words for one in main.caveats]
    baseline, compared = list(baseline_findings(first, one_process)), list(comparisons(points))
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
        worth=() if bar is None else tuple(one for series in all_series for one in worth_of(bar, series)),
        largest_worth=None if bar is None else largest_worth(first, bar, one_process),
    )


def _conclusions(
    series: Sequence[Point], bar: float | None, one_process: Sequence[Point], failed: Sequence[int]
) -> _Conclusions:
    usable, at = fair(series), knee(series)
    found = summary(series, bar, at, one_process)
    has_caveats = len(usable) > 1 and not series[0].oversubscribed
    unknown = list(caveats(usable, bar=bar, at=at)) if has_caveats else []
    point = found.point or (usable or series)[-1]
    return _Conclusions(series, at, found, *_overhead(series, point, failed), unknown)


def _fastest(variants: Sequence[Sequence[Point]]) -> Sequence[Point]:
    """Return the points of the variant that is the fastest at the most workers that all have."""
    rates = [{point.workers: point.samples_per_second for point in fair(one)} for one in variants]
    most = max(set.intersection(*map(set, rates)), default=None)
    if most is None:
        return variants[0]
    return variants[max(range(len(variants)), key=lambda number: rates[number][most])]


def _beside(found: Summary, others: Sequence[Sequence[Point]]) -> str:
    """Return the summary with the efficiency of as many workers in other variants."""
    if (about := found.point) is None:
        return found.words
    peers = [
        f"{point.variant or 'without'}: {percent(point.efficiency)}"
        for series in others
        for point in series
        if (point.mode, point.workers) == (about.mode, about.workers)
        and not (point.is_open or point.oversubscribed or series[0].oversubscribed)
    ]
    return "; ".join([found.words.removesuffix("."), *peers[:_PEERS]]) + "."


def _label(point: Point, modes: Collection[str]) -> str:
    """Return the variant of a sentence, with the mode if there are several modes or no variant."""
    mode = point.mode if len(modes) > 1 or not point.variant else ""
    return " ".join(filter(None, (mode, point.variant))) + ": "


def _overhead(series: Sequence[Point], point: Point, failed: Sequence[int]) -> tuple[str, Sequence[Finding]]:
    """Return the overhead at a point and at the next number of workers, with what to try."""
    base = series[0]
    missing = [counted(number) for number in failed if number != base.workers]
    if len(series) == 1 and missing:
        return f"There is no speedup, because a run on {' and '.join(missing)} gave no result.", ()
    if len(series) == 1:
        return "For a speedup, measure another number of workers too.", ()
    if point is base:
        return f"{speed(series[-1], base)}, oversubscribed.", ()
    if base.oversubscribed:
        return f"{speed(point, base)}; the overhead is unknown: {oversubscribed_baseline(base)}.", ()
    if point.is_open:
        return f"{speed(point, base)} by the medians; the overhead is inconclusive.", ()
    advised = [replace(one, workers=(point.workers,)) for one in advice(point, base)]
    parts = [f"{speed(point, base)}.", overhead(point), advice_words(advised)]
    following = next((one for one in fair(series) if one.workers > point.workers), None)
    if following is not None:
        parts += [f"{speed(following, base)}.", "" if following.is_open else overhead(following)]
    return " ".join(filter(None, parts)), advised
