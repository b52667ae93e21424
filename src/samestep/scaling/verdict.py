"""What a study came to: a sentence for those who pay, and one for those who can change something."""

from collections.abc import Collection, Iterator, Sequence

from samestep.scaling.advice import advice
from samestep.scaling.certainty import doubts, is_decided, is_open, reaches
from samestep.scaling.knee import knee
from samestep.scaling.manager import Told, largest_worth, manager
from samestep.scaling.relate import series_of
from samestep.scaling.serial import flattery, outdone
from samestep.scaling.study import Point, Verdict, Worth
from samestep.scaling.variants import comparisons
from samestep.scaling.words import BASE_CROWDED, counted, lost, percent, speed

_PEERS = 3
"""Of so many other variants the efficiency is told beside that of the fastest."""


def judge(points: Sequence[Point], bar: float | None = None) -> Verdict | None:
    """Return the verdict on related points; None where there are none.

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
    worth = [] if bar is None else [one for series in all_series for one in _worth(bar, series)]
    usable, (at, told) = _usable(first), _told(first, bar)
    modes = {series[0].mode for series in all_series}
    unknown = list(_doubts(first, bar))
    of_which = _label(first[0], modes) if first[0].variant else ""
    return Verdict(
        manager=of_which + _beside(told, others),
        engineer=of_which + " ".join([_engineer(first, told.point), *unknown]),
        serial=flattery(first),
        others=tuple(_label(series[0], modes) + _other(series, bar, unknown) for series in others),
        comparisons=comparisons(points),
        variant=first[0].variant,
        knee=at,
        bar=bar,
        worth=tuple(worth),
        largest_worth=None if bar is None or first[0].oversubscribed else largest_worth(usable, bar),
    )


def _told(series: Sequence[Point], bar: float | None) -> tuple[int | None, Told]:
    at = knee(series)
    return at, manager(series, bar=bar, at=at)


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


def _beside(told: Told, others: Sequence[Sequence[Point]]) -> str:
    """Return a sentence, and how efficient as many workers are in other variants."""
    if told.point is None:
        return told.words
    alike = [
        point
        for series in others
        for point in series
        if (point.mode, point.workers) == (told.point.mode, told.point.workers)
        and not (is_open(point) or point.oversubscribed or series[0].oversubscribed)
    ]
    peers = [f"{point.variant or 'without'}: {percent(point.efficiency)}" for point in alike[:_PEERS]]
    return "; ".join([told.words.removesuffix("."), *peers]) + "."


def _label(point: Point, modes: Collection[str]) -> str:
    """Return which points a sentence is about; their mode too where there are several, or nothing else."""
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


def _doubts(series: Sequence[Point], bar: float | None) -> Iterator[str]:
    usable, at = _usable(series), knee(series)
    if len(usable) > 1 and not series[0].oversubscribed:
        yield from doubts(usable, bar=bar, at=usable[-1].workers if at is None else at)


def _other(series: Sequence[Point], bar: float | None, said: Collection[str]) -> str:
    """Return the engineer's sentence on another series, without what is said of the first already."""
    engineer = _engineer(series, _told(series, bar)[1].point)
    return " ".join([engineer, *(one for one in _doubts(series, bar) if one not in said)])


def _engineer(series: Sequence[Point], chosen: Point | None) -> str:
    """Return what was lost at the workers that the manager hears of, and at the next number."""
    if len(series) == 1:
        return "For a speedup, measure another number of workers too."
    usable = _usable(series)
    point = chosen or (usable or series)[-1]
    if point is series[0]:
        return f"{speed(series[-1])}, oversubscribed."
    if series[0].oversubscribed:
        return f"{speed(point)}; what was lost cannot be told: {counted(series[0].workers)} {BASE_CROWDED}."
    if is_open(point):
        return f"{speed(point)} by the medians; what was lost cannot be told."
    said = [f"{speed(point)}.", lost(point), advice(point, series[0])]
    following = next((one for one in usable if one.workers > point.workers), None)
    if following is not None:
        said += [f"{speed(following)}.", "" if is_open(following) else lost(following)]
    return " ".join(part for part in said if part)
