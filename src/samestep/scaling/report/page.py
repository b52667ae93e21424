"""Writes the report of a scaling study as a page: verdict, charts, tables, and configuration."""

import re
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path

from samestep import __version__
from samestep.report.drawing import patterns
from samestep.report.page import (
    bullets,
    numeric_columns,
    page,
    section,
    table,
    title_of,
    unbroken_flags,
)
from samestep.report.write import write_text
from samestep.scaling.analysis.study import Study
from samestep.scaling.report.figures import summary_charts, time_lines
from samestep.scaling.report.rows import (
    NO_POINTS,
    Kind,
    facts,
    headings,
    kinds,
    ranks,
    results,
    steps,
)

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
    ("oversubscribed", "the workers had fewer cores than threads, or shared accelerators"),
    (
        "95 % interval",
        "Student's t of the logarithms of repeats, widened to the medians",
    ),
    (
        "workers' time",
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
    found = kinds(study)
    head, rows = results(study)
    drawn = "".join(chart.render() for chart in summary_charts(study))
    yield section(
        "Scaling",
        f'<div class="grid2">{drawn}</div>',
        table(rows, head=head, right=numeric_columns(rows)),
    )
    yield from _steps(study, found)


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
        yield section("Notes", bullets([note.text for note in study.notes], "notes"))
    yield section("Terms", table(_TERMS))
