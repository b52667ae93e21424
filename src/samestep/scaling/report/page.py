"""Writes the report of a scaling study as a page: verdict, charts, tables, and configuration."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from samestep import __version__
from samestep.base.units import counted, percent, seconds_text
from samestep.report.charts import Bar, BarChart, PointChart, TimeLine
from samestep.report.charts import Span as Drawn
from samestep.report.drawing import PARTS, Chart, DataPoint, color, patterns
from samestep.report.page import (
    bullets,
    grid,
    page,
    section,
    table,
    title_of,
    unbroken_flags,
    write_text,
)
from samestep.scaling.analysis.points import UNIT, amount, like_each, times
from samestep.scaling.analysis.speedup import rate_ratio, same_threads
from samestep.scaling.analysis.study import Point, Span, Study
from samestep.scaling.report.tables import (
    NO_POINTS,
    Kind,
    facts,
    headings,
    kinds,
    parts,
    ranks,
    resources,
    results,
    shown_ranks,
    steps,
)

_COUNTED = re.compile(r"(?<=\d) ")  # the space between a number and its noun
_SENTENCE = re.compile(r"(?<=>)[^<>]*(?=</(?:p|li)>)")

_TERMS = (
    ("baseline", "the smallest number of workers; on processors also one process with all their cores"),
    (
        "speedup",
        "rate divided by that of a baseline, which is named; times the workers of this baseline",
    ),
    (
        "efficiency",
        "speedup over 1 worker, divided by workers: 100 % if each is as fast as one alone",
    ),
    ("strong scaling", "the global batch is constant; each worker's share of it shrinks"),
    ("weak scaling", "each worker's batch is constant; the global batch grows, which changes the training"),
    (
        "exposed communication",
        "time that a step waits for communication of gradients, not hidden by backward",
    ),
    ("oversubscribed", "the workers had fewer cores than threads, or shared accelerators"),
    ("95 % interval", "Student's t of the logarithms of repeats, widened to the medians"),
    ("workers' time", "time of all workers added up; cost in cores or accelerators follows from it"),
)


def write_study_page(study: Study, out: Path) -> Path:
    """Write the page of `study` to `out`, and return the path.

    Raises:
        UsageError: the page cannot be written.
    """
    return write_text(out, render(study))


def render(study: Study) -> str:
    """Return the page of `study` as HTML."""
    foot = f"Made by samestep {__version__}{f' from a study of {study.created}' if study.created else ''}."
    return page(f"Scaling study: {study.target}", _body(study), foot=foot, styles=("study.css",))


def _body(study: Study) -> Iterator[str]:
    yield patterns()
    yield '<header><p class="above">Scaling study</p>'
    yield title_of(study.target)
    if study.points:
        yield f'<p class="sub">{escape("; ".join(headings(kinds(study))))}</p>'
    yield from map(_unbroken, _results(study))
    yield _configuration(study)
    yield from map(_unbroken, _background(study))


def _unbroken(text: str) -> str:
    """Return HTML without line breaks before percent signs and in flags."""
    text = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return _SENTENCE.sub(lambda sentence: unbroken_flags(sentence[0]), text)


def _results(study: Study) -> Iterator[str]:
    if study.verdict:
        yield f'<p class="headline">{escape(study.verdict.sentence)}</p>'
    if _has_no_conclusion(study):
        yield bullets([note.text for note in study.notes], "findings")
    yield "</header>"
    if not study.points:
        yield f'<p class="headline">{NO_POINTS}</p>'
    else:
        yield from _measured(study)


def _has_no_conclusion(study: Study) -> bool:
    """Return whether there are too few points for a conclusion, so that the notes come first."""
    return len({point.workers for point in study.points}) < 2


def _measured(study: Study) -> Iterator[str]:
    studied = kinds(study)
    yield section("Scaling", grid(summary_charts(study)), _table(results(study)), *_resources(study))
    yield from _steps(study, studied)


def _table(content: tuple[list[str], list[list[str]]]) -> str:
    """Return a table of a header and rows; a number in a header stays with its noun."""
    head, rows = content
    bound = [_COUNTED.sub("\N{NO-BREAK SPACE}", name) for name in head]
    return table(rows, head=bound)


def _resources(study: Study) -> list[str]:
    content = resources(study)
    return ["<h3>Step, batch, memory and cost</h3>", _table(content)] if content[1] else []


def _steps(study: Study, studied: list[Kind]) -> Iterator[str]:
    content = steps(study)
    if not content[1]:
        return
    parts = [_table(content), *(line.render() for line in time_lines(study))]
    several = [kind for kind in studied if len(kind.largest.ranks) > 1]
    for kind in several[:4]:
        named = f" ({kind.title})" if kind.letter else ""
        content = ranks(kind.largest)
        shown = len(content[1])
        whole = "All" if shown == kind.largest.workers else f"The slowest {shown} of"
        parts.append(f"<h3>{whole} {kind.largest.workers} workers{escape(named)}</h3>")
        parts.append(_table(content))
    yield section("Phases of a step", *parts)


def _configuration(study: Study) -> str:
    time = [("time", study.created)] if study.created else []
    command = shlex.join(["samestep", *study.command[1:]]) if study.command else ""
    verbatim = f'<pre class="command">{escape(command)}</pre>' if command else ""
    return section(
        "Configuration", verbatim, table([("program", study.target), *time, *facts(study.settings)])
    )


def _background(study: Study) -> Iterator[str]:
    if study.machine:
        yield section("Machine", table(facts(study.machine)))
    if study.notes and not _has_no_conclusion(study):
        yield section("Notes", bullets([note.text for note in study.notes], "notes"))
    yield section("Terms", table(_TERMS))


_PLACES = {name: number for number, name in enumerate(PARTS)}
_MOST_TIME_LINES = 4  # each is as wide as the page
_VISIBLE_MS = 1e-6  # a shorter wait is a rounding error of a difference
_ONE_PROCESS = "one process, all their threads"


def charts(study: Study) -> list[Chart]:
    """Return all charts of `study`."""
    return [*summary_charts(study), *time_lines(study)]


def summary_charts(study: Study) -> list[Chart]:
    """Return the charts of all points; those of speedup and efficiency need several numbers of workers."""
    studied = kinds(study)
    if not studied:
        return []
    drawn: list[Chart] = [_throughput(studied, study.unit)]
    if any(kind.has_speedup for kind in studied):
        drawn = [_speedup(studied), *drawn, _efficiency(study, studied)]
    return [*drawn, _phase_bars(studied)] if any(point.step_s for point in study.points) else drawn


def time_lines(study: Study) -> Iterator[TimeLine]:
    """Yield a time line of one step for each kind, on its largest number of workers."""
    drawn = [(kind, point) for kind in kinds(study) if any((point := kind.largest).timeline)]
    for kind, point in drawn[:_MOST_TIME_LINES]:
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


def _speedup(studied: list[Kind]) -> PointChart:
    lines, note = _lines(studied, lambda _: 1), _caveats(studied)
    y = f"times {like_each(studied[0].points[0]) or 'the baseline'}"
    return PointChart(title="Speedup", y=y, lines=lines, ideal=float, base=2, text=times, note=note)


def _efficiency(study: Study, studied: list[Kind]) -> PointChart:
    bar = study.verdict.bar if study.verdict else None
    return PointChart(
        title="Efficiency",
        y="speedup by workers",
        lines=_lines(studied, lambda point: point.workers),
        ideal=lambda _: 1.0,
        limit=None if bar is None else (bar, f"required: {percent(bar)}"),
        tick=percent,
        text=percent,
        note=_caveats(studied),
    )


def _lines(studied: list[Kind], by: Callable[[Point], int]) -> dict[str, list[DataPoint]]:
    """Return the speedups over one worker like each with their intervals, divided `by` something.

    One worker with the cores of several has a line of its own.
    """

    def measured(point: Point) -> DataPoint:
        ends = point.speedup, point.speedup_low, point.speedup_high
        y, low, high = ((point.speedup if end is None else end) / by(point) for end in ends)
        return DataPoint(point.workers, y, low, high, is_hollow=point.oversubscribed)

    def process(point: Point, base: Point) -> DataPoint:
        low, high = rate_ratio(point, base) or (None, None)
        speedup = point.efficiency * point.cores_of
        as_workers = replace(
            point, workers=point.cores_of, speedup=speedup, speedup_low=low, speedup_high=high
        )
        return measured(as_workers)

    of_workers = {kind.title: list(map(measured, same_threads(kind.points))) for kind in studied}
    of_process = {
        f"{kind.letter}: {_ONE_PROCESS}".removeprefix(": "): [
            measured(kind.points[0]),
            *(process(point, kind.points[0]) for point in kind.one_process),
        ]
        for kind in studied
        if kind.one_process
    }
    return of_workers | of_process


def _throughput(studied: list[Kind], unit: str) -> BarChart:
    unit, scale = ("runs/h", 3600.0) if unit == UNIT else (unit, 1.0)

    def bar(kind: Kind, point: Point) -> Bar:
        first, rate = kind.points[0], point.samples_per_second
        ends = (point.samples_per_second_low, point.samples_per_second_high)
        low, high = (scale * (rate if end is None else end) for end in ends)
        return Bar(
            name=kind.letter,
            parts={studied.index(kind): scale * rate},
            ideal=scale * first.samples_per_second * point.workers / first.workers,
            low=low,
            high=high,
            text=percent(point.efficiency),
        )

    groups = _by_workers(studied, bar)
    has_gap = any(drawn.ideal > drawn.value for bars in groups.values() for drawn in bars)
    return BarChart(
        title="Throughput, and the gap to ideal" if has_gap else "Throughput",
        name="throughput",
        x="workers",
        y=unit,
        kinds=[(color(number), kind.title) for number, kind in enumerate(studied)],
        groups=groups,
        text=lambda rate: f"{amount(rate)} {unit}",
        note="Dashed: ideal throughput, at the baseline's speed of each worker." if has_gap else "",
    )


def _phase_bars(studied: list[Kind]) -> BarChart:
    def bar(kind: Kind, point: Point) -> Bar:
        lengths = {_PLACES[name]: 1e3 * seconds for name, seconds in parts(point).items() if seconds > 0}
        return Bar(name=kind.letter, parts=lengths, text=amount(sum(lengths.values())))

    timed = [replace(kind, points=[point for point in kind.points if point.step_s]) for kind in studied]
    return BarChart(
        title="Phases of a step",
        x="workers",
        y="ms per step",
        kinds=list(PARTS.values()),
        groups=_by_workers(timed, bar),
        text=lambda ms: seconds_text(ms / 1e3),
        shares=True,
        note="Mean over ranks. " + " ".join(f"{kind.title}." for kind in studied if kind.letter),
    )


def _by_workers(studied: list[Kind], bar: Callable[[Kind, Point], Bar]) -> dict[str, list[Bar]]:
    """Return the bar of each point, in groups of one number of workers."""
    groups: dict[int, list[Bar]] = {}
    for kind in studied:
        for point in kind.points:
            groups.setdefault(point.workers, []).append(bar(kind, point))
    return {str(workers): groups[workers] for workers in sorted(groups)}


def _caveats(studied: list[Kind]) -> str:
    points = [point for kind in studied for point in kind.points]
    notes = []
    if any(point.speedup_low is not None for point in points):
        notes.append("Vertical lines: 95 % interval over repeats; an arrow marks a clipped end.")
    if any(point.oversubscribed for point in points):
        notes.append("Hollow: oversubscribed; not valid for more machines.")
    return " ".join(notes)
