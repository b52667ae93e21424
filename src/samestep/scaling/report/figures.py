"""Builds the charts of a scaling study."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from samestep.base.units import counted, percent, seconds_text
from samestep.report.bar_charts import Bar, BarChart, TimeLine
from samestep.report.bar_charts import Span as Drawn
from samestep.report.drawing import PARTS, Chart, color
from samestep.report.line_charts import PointChart
from samestep.report.scales import DataPoint
from samestep.scaling.analysis.point_text import like_each, times
from samestep.scaling.analysis.points import UNIT
from samestep.scaling.analysis.speedup import rate_ratio, same_threads
from samestep.scaling.analysis.study import Point, Span, Study
from samestep.scaling.report.rows import Kind, kinds, parts, shown_ranks

_PLACES = {name: number for number, name in enumerate(PARTS)}
_MOST_TIME_LINES = 4
_VISIBLE_MS = 1e-6
_ONE_PROCESS = "one process, all their threads"


def charts(study: Study) -> list[Chart]:
    """Return all charts of `study`."""
    return [*summary_charts(study), *time_lines(study)]


def summary_charts(study: Study) -> list[Chart]:
    """Return the charts of all points; those of speedup and efficiency need several numbers of workers."""
    found = kinds(study)
    if not found:
        return []
    drawn: list[Chart] = [_throughput(found, study.unit)]
    if any(kind.has_speedup for kind in found):
        drawn = [_speedup(found), *drawn, _efficiency(study, found)]
    return [*drawn, _steps(found)] if any(point.step_s for point in study.points) else drawn


def time_lines(study: Study) -> Iterator[TimeLine]:
    """Yield a time line of one step for each kind, on its largest number of workers."""
    found = [(kind, point) for kind in kinds(study) if any((point := kind.largest).timeline)]
    for kind, point in found[:_MOST_TIME_LINES]:
        ranks = shown_ranks(point)
        left_out = len(point.timeline) - len(ranks)
        more = f" {left_out} faster ranks are left out." if left_out else ""
        exchange_s = min(sum(_synced(spans)) for spans in point.timeline)
        yield TimeLine(
            title=f"One step on {counted(point.workers, 'worker')}{f', {kind.title}' if kind.letter else ''}",
            name=f"one step {kind.letter}",
            kinds=list(PARTS.values()),
            rows={f"rank {rank}": list(_drawn(point.timeline[rank], exchange_s)) for rank in ranks},
            note="A step of typical length. All ranks leave the communication at the same time; time beyond "
            f"the shortest wait of a rank is waiting for other ranks.{more}",
        )


def _synced(spans: Sequence[Span]) -> list[float]:
    return [span.end_s - span.begin_s for span in spans if span.phase == "exposed_sync"]


def _drawn(spans: Sequence[Span], exchange_s: float) -> Iterator[Drawn]:
    """Yield the phases of a rank in ms; waiting beyond `exchange_s` is waiting for other ranks."""
    for span in spans:
        begin, end = 1e3 * span.begin_s, 1e3 * span.end_s
        if span.phase == "exposed_sync":
            arrived = max(begin, end - 1e3 * exchange_s)
            if arrived - begin > _VISIBLE_MS:
                yield Drawn(_PLACES["waiting"], begin, arrived)
                begin = arrived
        if end > begin and span.phase in PARTS:
            yield Drawn(_PLACES[span.phase], begin, end)


def _speedup(found: list[Kind]) -> PointChart:
    lines, note = _lines(found, lambda _: 1), _caveats(found)
    y = f"times {like_each(found[0].points[0]) or 'the baseline'}"
    return PointChart(title="Speedup", y=y, lines=lines, ideal=float, base=2, text=times, note=note)


def _efficiency(study: Study, found: list[Kind]) -> PointChart:
    bar = study.verdict.bar if study.verdict else None
    return PointChart(
        title="Efficiency",
        y="speedup by workers",
        lines=_lines(found, lambda point: point.workers),
        ideal=lambda _: 1.0,
        limit=None if bar is None else (bar, f"required: {percent(bar)}"),
        tick=percent,
        text=percent,
        note=_caveats(found),
    )


def _lines(found: list[Kind], by: Callable[[Point], int]) -> dict[str, list[DataPoint]]:
    """Return the speedups over one worker like each with their intervals, divided `by` something.

    One worker with the cores of several has a line of its own.
    """

    def measured(point: Point) -> DataPoint:
        ends = point.speedup, point.speedup_low, point.speedup_high
        y, low, high = ((point.speedup if end is None else end) / by(point) for end in ends)
        return DataPoint(point.workers, y, low, high, is_hollow=point.oversubscribed)

    def process(one: Point, base: Point) -> DataPoint:
        low, high = rate_ratio(one, base) or (None, None)
        speedup = one.efficiency * one.cores_of
        as_workers = replace(one, workers=one.cores_of, speedup=speedup, speedup_low=low, speedup_high=high)
        return measured(as_workers)

    of_workers = {kind.title: list(map(measured, same_threads(kind.points))) for kind in found}
    of_process = {
        f"{kind.letter}: {_ONE_PROCESS}".removeprefix(": "): [
            measured(kind.points[0]),
            *(process(one, kind.points[0]) for one in kind.one_process),
        ]
        for kind in found
        if kind.one_process
    }
    return of_workers | of_process


def _throughput(found: list[Kind], unit: str) -> BarChart:
    unit, scale = ("runs/h", 3600.0) if unit == UNIT else (unit, 1.0)

    def bar(kind: Kind, point: Point) -> Bar:
        first, rate = kind.points[0], point.samples_per_second
        ends = (point.samples_per_second_low, point.samples_per_second_high)
        low, high = (scale * (rate if end is None else end) for end in ends)
        return Bar(
            name=kind.letter,
            parts={found.index(kind): scale * rate},
            ideal=scale * first.samples_per_second * point.workers / first.workers,
            low=low,
            high=high,
            text=percent(point.efficiency),
        )

    groups = _by_workers(found, bar)
    has_gap = any(one.ideal > one.value for bars in groups.values() for one in bars)
    return BarChart(
        title="Throughput, and the gap to ideal" if has_gap else "Throughput",
        name="throughput",
        x="workers",
        y=unit,
        kinds=[(color(number), kind.title) for number, kind in enumerate(found)],
        groups=groups,
        text=lambda rate: f"{rate:,.4g} {unit}",
        note="Dashed: ideal throughput, at the baseline's speed of each worker." if has_gap else "",
    )


def _steps(found: list[Kind]) -> BarChart:
    def bar(kind: Kind, point: Point) -> Bar:
        lengths = {_PLACES[name]: 1e3 * seconds for name, seconds in parts(point).items() if seconds > 0}
        return Bar(name=kind.letter, parts=lengths, text=f"{sum(lengths.values()):.3g}")

    timed = [replace(kind, points=[point for point in kind.points if point.step_s]) for kind in found]
    return BarChart(
        title="Phases of a step",
        x="workers",
        y="ms per step",
        kinds=list(PARTS.values()),
        groups=_by_workers(timed, bar),
        text=lambda ms: seconds_text(ms / 1e3),
        shares=True,
        note="Mean over ranks. " + " ".join(f"{kind.title}." for kind in found if kind.letter),
    )


def _by_workers(found: list[Kind], bar: Callable[[Kind, Point], Bar]) -> dict[str, list[Bar]]:
    """Return the bar of each point, in groups of one number of workers."""
    groups: dict[int, list[Bar]] = {}
    for kind in found:
        for point in kind.points:
            groups.setdefault(point.workers, []).append(bar(kind, point))
    return {str(workers): groups[workers] for workers in sorted(groups)}


def _caveats(found: list[Kind]) -> str:
    points = [point for kind in found for point in kind.points]
    notes = []
    if any(point.speedup_low is not None for point in points):
        notes.append("Vertical lines: 95 % interval over repeats; an arrow marks a clipped end.")
    if any(point.oversubscribed for point in points):
        notes.append("Hollow: oversubscribed; not valid for more machines.")
    return " ".join(notes)
