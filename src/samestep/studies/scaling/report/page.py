"""Writes the report of a scaling study as a page: verdict, charts, tables, and configuration."""

import re
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path

from samestep import __version__
from samestep.studies.report.drawing import patterns
from samestep.studies.report.page import (
    bullets,
    numeric_columns,
    page,
    section,
    table,
    title_of,
    unbroken_flags,
)
from samestep.studies.report.write import write_text
from samestep.studies.scaling.analysis.point_text import counted, like_each, over_words, percent
from samestep.studies.scaling.analysis.statements import NO_CONCLUSIONS
from samestep.studies.scaling.analysis.study import Point, Study, Verdict
from samestep.studies.scaling.report.figures import summary_charts, time_lines, times_text
from samestep.studies.scaling.report.rows import (
    NO_POINTS,
    facts,
    fit_texts,
    ranks,
    rate_name,
    rates,
    results,
    steps,
    worker_time,
    worth,
)
from samestep.studies.scaling.report.series import Kind, headings, kinds

_SENTENCE = re.compile(r"(?<=>)[^<>]*(?=</(?:p|li)>)")

_TERMS = (
    ("baseline", "the smallest number of workers; on processors also one process with all their cores"),
    (
        "speedup",
        "rate divided by the rate of the faster baseline, times the number of workers of this baseline",
    ),
    (
        "efficiency",
        "speedup over one worker like each, divided by workers: 100 % if each is as fast as one alone",
    ),
    ("strong scaling", "the global batch is constant; each worker's share of it shrinks"),
    ("weak scaling", "each worker's batch is constant; the global batch grows, which changes the training"),
    (
        "exposed communication",
        "time that a step waits for communication of gradients, not hidden by backward",
    ),
    ("whole on each", "a part of the step that is computed unsplit on every worker"),
    ("oversubscribed", "the workers had fewer cores than threads, or shared accelerators"),
    (
        "95 % interval",
        "Student's t of the logarithms of repeats, widened to the medians",
    ),
    (
        "workers' time, worker-hours",
        "time of all workers added up; cost in cores or accelerators follows from it",
    ),
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
    return _SENTENCE.sub(lambda found: unbroken_flags(found[0]), text)


def _results(study: Study) -> Iterator[str]:
    if study.verdict:
        yield from _verdict(study.verdict)
    if _has_no_conclusion(study):
        yield bullets(study.notes, "findings")
    yield "</header>"
    if not study.points:
        yield f'<p class="headline">{NO_POINTS}</p>'
    else:
        yield from _measured(study)


def _has_no_conclusion(study: Study) -> bool:
    """Return whether there are too few points for a conclusion, so that the notes come first."""
    return len({point.workers for point in study.points}) < 2


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f'<p class="headline">{escape(verdict.manager)}</p>'
    yield bullets([verdict.serial] if verdict.serial else [], "hints")
    yield f'<p class="engineer">{escape(verdict.engineer)}</p>'
    yield bullets(verdict.others, "findings")


def _measured(study: Study) -> Iterator[str]:
    found = kinds(study)
    if not (study.verdict and study.verdict.code in NO_CONCLUSIONS):  # no figure stands out then
        yield _tiles(study, _kind_of_verdict(study, found))
    yield from _worth(study, found)
    head, rows = results(study)
    drawn = "".join(chart.render() for chart in summary_charts(study))
    yield section(
        "Scaling",
        f'<div class="grid2">{drawn}</div>',
        table(rows, head=head, right=numeric_columns(rows)),
    )
    if study.verdict and study.verdict.comparisons:
        yield section("Variants compared", bullets(study.verdict.comparisons, "findings"))
    yield from _steps(study, found)
    rules = fit_texts(study)
    if rules:
        yield section("Fits", bullets(rules, "notes"))


def _worth(study: Study, found: list[Kind]) -> Iterator[str]:
    """Yield a yes or no for each point, if the study has a required efficiency."""
    found = [kind for kind in found if kind.has_speedup]
    if study.verdict is None or study.verdict.bar is None or not found:
        return
    lists = []
    for kind in found:
        answers = [(point, worth(study, point)) for point in kind.points]
        chips = "".join(_chip(point, answer) for point, answer in answers if answer)
        named = f"<p>{escape(kind.title)}</p>" if kind.letter else ""
        lists.append(f'{named}<ul class="worth">{chips}</ul>')
    yield section(f"Worth it at {percent(study.verdict.bar)} efficiency or more?", *lists)


def _chip(point: Point, answer: str) -> str:
    plain = answer.rstrip("?")
    why = "" if plain == answer else f", uncertain: {_OPEN if point.between else _ONCE}"
    reached = f"{percent(point.efficiency)}: {plain}{why}"
    return f'<li class="{plain}">{_MARKS[plain]} <b>{counted(point.workers)}</b> {reached}</li>'


def _steps(study: Study, found: list[Kind]) -> Iterator[str]:
    head, rows = steps(study)
    if not rows:
        return
    lines = "".join(line.render() for line in time_lines(study))
    parts = [table(rows, head=head, right=numeric_columns(rows)), lines]
    several = [kind for kind in found if len(kind.largest.ranks) > 1]
    for kind in several[:4]:
        named = f" ({kind.title})" if kind.letter else ""
        own_head, own = ranks(kind.largest)
        whole = "All" if len(own) == kind.largest.workers else f"The slowest {len(own)} of"
        parts.append(f"<h3>{whole} {kind.largest.workers} workers{escape(named)}</h3>")
        parts.append(table(own, head=own_head, right=numeric_columns(own)))
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
        yield section("Notes", bullets(study.notes, "notes"))
    yield section("Terms", table(_TERMS))


def _kind_of_verdict(study: Study, found: list[Kind]) -> Kind:
    """Return the kind that the verdict is about."""
    variant = study.verdict.variant if study.verdict else ""
    return next((kind for kind in found if kind.points[0].variant == variant), found[0])


def _tiles(study: Study, kind: Kind) -> str:
    """Return the main numbers of the largest worthwhile number of workers, or of the largest."""
    verdict = study.verdict
    wanted = verdict.largest_worth if verdict else None
    point = next((one for one in kind.points[1:] if one.workers == wanted), kind.largest)
    rate, interval = rates(study, point)
    numbers = [(*counted(point.workers).split(), kind.title if kind.letter else "")]
    if kind.has_speedup:
        numbers.append((times_text(point.speedup), *_speedup(point, kind.points[0])))
        numbers.append((percent(point.efficiency), "efficiency", ""))
    numbers.append((rate, rate_name(study), interval and f"95 %: {interval}"))
    if point.worker_hours_per_epoch is not None:
        numbers.append((worker_time(point.worker_hours_per_epoch), "workers' time per epoch", "all together"))
    tiles = "".join(
        f"<li><b>{escape(number)}</b> <span>{escape(name)}</span><small>{escape(more)}</small></li>"
        for number, name, more in numbers
    )
    return f'<ul class="tiles">{tiles}</ul>'


def _speedup(point: Point, base: Point) -> tuple[str, str]:
    """Return what a speedup is over, and the ideal or the speedup over one worker like each."""
    over, alike = over_words(point, base), times_text(point.efficiency * point.workers)
    name = f"speedup over {over}" if over else "speedup"
    is_ideal = point.baseline_cores_of == 1
    return name, f"ideal: {point.workers}" if is_ideal else f"{alike} over {like_each(base)}"


_MARKS = {"yes": "✓", "no": "✗", "unknown": "?"}
_OPEN = "the interval contains the required efficiency"
_ONCE = "there is no interval without repeats"
