"""The report of a scaling study: one page that answers whether more workers were worth it, and shows why."""

import re
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path

from samestep import __version__
from samestep.report.bars import patterns
from samestep.report.page import bullets, page, section, table
from samestep.report.scaling.figures import charts, time_lines, times_text
from samestep.report.scaling.rows import (
    facts,
    followed,
    of_numbers,
    pace_name,
    paces,
    ranks,
    results,
    steps,
    worker_time,
    worth,
)
from samestep.report.scaling.series import Kind, headings, kinds
from samestep.report.write import write_text
from samestep.scaling.certainty import between
from samestep.scaling.study import Point, Study, Verdict
from samestep.scaling.words import counted, percent

_SENTENCE = re.compile(r"(?<=>)[^<>]*(?=</(?:p|li)>)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
"""A flag, which a browser would break at its hyphens."""

_MEANING = (
    ("speedup", "the rate over that at the fewest workers, times their number"),
    ("efficiency", "speedup by workers: 100 % where each worker is as fast as at the fewest"),
    ("strong scaling", "the global batch stays as it is; each worker has a smaller share of it"),
    (
        "weak scaling",
        "each worker's batch stays as it is; the global batch grows, and the training is another",
    ),
    (
        "exposed exchange",
        "what a step waits for the exchange of gradients, after what is hidden behind backward",
    ),
    (
        "whole on each",
        "a part of the step that is not shared out: each worker does all of it, as one worker does",
    ),
    ("oversubscribed", "the workers had fewer cores than threads, or not an accelerator each"),
    (
        "95 % interval",
        "Student's, over repeats, on a scale of ratios, to hold those in the middle; a single one has none",
    ),
    (
        "workers' time, worker-hours",
        "of all workers together, added up; a computing centre accounts for their cores or accelerators",
    ),
)


def write_study_page(study: Study, out: Path) -> Path:
    """Write the page of `study` to `out`; return its path.

    Raises:
        UsageError: it cannot be written.
    """
    return write_text(out, render(study))


def render(study: Study) -> str:
    """Return the page of `study`."""
    foot = f"Made by samestep {__version__}{f' from a study of {study.created}' if study.created else ''}."
    return page(f"Scaling study: {study.target}", _body(study), foot=foot, styles=("study.css",))


def _body(study: Study) -> Iterator[str]:
    yield patterns()
    yield '<header><p class="above">Scaling study</p>'
    yield f"<h1>{escape(study.target)}</h1>"
    if study.points:
        yield f'<p class="sub">{escape("; ".join(headings(kinds(study))))}</p>'
    yield from map(_bound, _told(study))
    yield _ran(study)
    yield from map(_bound, _how(study))


def _bound(text: str) -> str:
    """Return HTML in which no line breaks before a percent sign, or in a flag; none that is to be copied."""
    text = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return _SENTENCE.sub(lambda found: _FLAG.sub(r'<span class="flag">\g<0></span>', found[0]), text)


def _told(study: Study) -> Iterator[str]:
    if study.verdict:
        yield from _verdict(study.verdict)
    if _is_bare(study):
        yield bullets(study.notes, "findings")
    yield "</header>"
    if not study.points:
        yield '<p class="headline">Nothing was measured.</p>'
    else:
        yield from _measured(study)


def _is_bare(study: Study) -> bool:
    """Return whether nothing follows, for want of points: why is then the first thing to be told."""
    return len({point.workers for point in study.points}) < 2


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f'<p class="headline">{escape(verdict.manager)}</p>'
    yield bullets([verdict.serial] if verdict.serial else [], "hints")
    yield f'<p class="engineer">{escape(verdict.engineer)}</p>'
    yield bullets(verdict.others, "findings")


def _measured(study: Study) -> Iterator[str]:
    found = kinds(study)
    yield _tiles(study, _judged(study, found))
    yield from _worth(study, found)
    head, rows = results(study)
    drawn = "".join(chart.render() for chart in charts(study))
    yield section(
        "How it scales", f'<div class="grid2">{drawn}</div>', table(rows, head=head, right=of_numbers(rows))
    )
    if study.verdict and study.verdict.comparisons:
        yield section("Variants compared", bullets(study.verdict.comparisons, "findings"))
    yield from _steps(study, found)
    rules = followed(study)
    if rules:
        yield section("What the points follow", bullets(rules, "notes"))


def _worth(study: Study, found: list[Kind]) -> Iterator[str]:
    """Yield a yes or no for each point, where an efficiency was asked for."""
    found = [kind for kind in found if kind.has_speedup]
    if study.verdict is None or study.verdict.bar is None or not found:
        return
    lists = []
    for kind in found:
        answers = [(point, worth(study, point)) for point in kind.points]
        chips = "".join(_chip(point, answer) for point, answer in answers if answer)
        named = f"<p>{escape(kind.title)}</p>" if kind.letter else ""
        lists.append(f'{named}<ul class="worth">{chips}</ul>')
    yield section(f"Worth it, from {percent(study.verdict.bar)} efficiency on?", *lists)


def _chip(point: Point, answer: str) -> str:
    plain = answer.rstrip("?")
    why = "" if plain == answer else f", though {_OPEN if between(point) else _ONCE}"
    reached = f"{percent(point.efficiency)}: {plain}{why}"
    return f'<li class="{plain}">{_MARKS[plain]} <b>{counted(point.workers)}</b> {reached}</li>'


def _steps(study: Study, found: list[Kind]) -> Iterator[str]:
    head, rows = steps(study)
    if not rows:
        return
    lines = "".join(line.render() for line in time_lines(study))
    parts = [table(rows, head=head, right=of_numbers(rows)), lines]
    told = [kind for kind in found if len(kind.largest.ranks) > 1]
    for kind in told[:4]:
        named = f" ({kind.title})" if kind.letter else ""
        own_head, own = ranks(kind.largest)
        whole = "Each" if len(own) == kind.largest.workers else f"Those waited for the most, {len(own)}"
        parts.append(f"<h3>{whole} of {kind.largest.workers} workers{escape(named)}</h3>")
        parts.append(table(own, head=own_head, right=of_numbers(own)))
    yield section("The parts of a step", *parts)


def _ran(study: Study) -> str:
    when = [("when", study.created)] if study.created else []
    command = shlex.join(["samestep", *study.command[1:]]) if study.command else ""
    copied = f'<pre class="command">{escape(command)}</pre>' if command else ""
    told = table([("what ran", study.target), *when, *facts(study.settings)])
    return section("What was run, and how", copied, told)


def _how(study: Study) -> Iterator[str]:
    if study.machine:
        yield section("On what", table(facts(study.machine)))
    if study.notes and not _is_bare(study):
        yield section("Notes", bullets(study.notes, "notes"))
    yield section("What the words mean", table(_MEANING))


def _judged(study: Study, found: list[Kind]) -> Kind:
    """Return the kind that the verdict is about."""
    variant = study.verdict.variant if study.verdict else ""
    return next((kind for kind in found if kind.points[0].variant == variant), found[0])


def _tiles(study: Study, kind: Kind) -> str:
    """Return the figures of the most workers that are worth it, or of the most."""
    verdict = study.verdict
    wanted = verdict.largest_worth if verdict else None
    point = next((one for one in kind.points[1:] if one.workers == wanted), kind.largest)
    pace, interval = paces(study, point)
    told = [
        (*counted(point.workers).split(), kind.title if kind.letter else ""),
        *(_gained(point) if kind.has_speedup else ()),
        (pace, pace_name(study), interval and f"95 %: {interval}"),
    ]
    if point.worker_hours_per_epoch is not None:
        told.append((worker_time(point.worker_hours_per_epoch), "workers' time per epoch", "all together"))
    tiles = "".join(
        f"<li><b>{escape(number)}</b> <span>{escape(name)}</span><small>{escape(more)}</small></li>"
        for number, name, more in told
    )
    return f'<ul class="tiles">{tiles}</ul>'


def _gained(point: Point) -> Iterator[tuple[str, str, str]]:
    yield times_text(point.speedup), "speedup", f"ideal: {point.workers}"
    yield percent(point.efficiency), "efficiency", ""


_MARKS = {"yes": "✓", "no": "✗", "unknown": "?"}
_OPEN = "the interval leaves it open"
_ONCE = "without several runs nobody can tell how sure that is"
