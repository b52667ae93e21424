"""Formats a scaling study as ASCII text: a table, bars of the speedup, and the verdict."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence

from samestep.base.units import bytes_text, seconds_text
from samestep.report.scaling.rows import (
    NO_POINTS,
    OVERHEAD,
    fit_texts,
    overhead,
    rate_name,
    rates,
    text_table,
    worker_time,
    worth,
)
from samestep.report.scaling.series import Kind, headings, kinds
from samestep.scaling.study import Point, Study, Verdict
from samestep.scaling.words import percent

_LONGEST = 48
"""Number of characters of the longest bar."""

_NO_BREAK = "\N{NO-BREAK SPACE}"
_MEMORY, _COST = "memory each", "workers' time per epoch"
_OPTIONAL = (OVERHEAD, _MEMORY, _COST, "step", "95 % interval")
"""Columns that are dropped from a table that is too wide, in this order."""


def terminal_width() -> int | None:
    """Return the width of the terminal at stdout; None if it is not a terminal, or has no width."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except OSError:
        return None


def study_text(study: Study, width: int | None = None) -> str:
    """Return `study` as text.

    Args:
        study: the study.
        width: maximum length of lines; None for no limit.
    """
    found = kinds(study)
    verdict = [*([] if found else [NO_POINTS]), *(_verdict(study.verdict) if study.verdict else ())]
    blocks = [
        [study.target],
        [f"{heading}." for heading in headings(found)],
        _table(study, found, width) if found else [],
    ]
    blocks += [_picture(kind) for kind in found if len(kind.points) > 1]
    blocks += [_wrapped(part, width) for part in (fit_texts(study), verdict, study.notes)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _wrapped(sentences: Sequence[str], width: int | None) -> list[str]:
    """Return sentences in lines of `width`, without a break in a flag or before `%`."""
    if width is None:
        return list(sentences)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    bound = (sentence.replace(" %", f"{_NO_BREAK}%") for sentence in sentences)
    return [line.replace(_NO_BREAK, " ") for sentence in bound for line in wrapper.wrap(sentence)]


def _table(study: Study, found: list[Kind], width: int | None) -> list[str]:
    """Return the table, with the overhead below it if its column does not fit."""
    head = [
        "workers",
        "",
        rate_name(study),
        "95 % interval",
        "speedup",
        "efficiency",
        "step",
        _MEMORY,
        _COST,
        "worth it",
        OVERHEAD,
    ]
    rows = [_row(study, kind, point) for kind in found for point in kind.points]
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    below: list[str] = []
    for name in ("", *_OPTIONAL):
        kept = [k for k in kept if head[k] != name or not name]
        lines = text_table([head[k] for k in kept], [[row[k] for k in kept] for row in rows])
        if name == OVERHEAD:
            texts = [f"{' '.join(filter(None, row[:2]))} {OVERHEAD}: {row[-1]}" for row in rows if row[-1]]
            below = _wrapped(texts, width)
        if width is None or max(map(len, lines)) <= width:
            break
    return [*lines, *below]


def _row(study: Study, kind: Kind, point: Point) -> list[str]:
    step_s = sum(point.step_s.values())
    return [
        str(point.workers),
        kind.letter,
        *rates(study, point),
        f"{point.speedup:.2f}x" if kind.has_speedup else "",
        percent(point.efficiency) if kind.has_speedup else "",
        seconds_text(step_s) if step_s else "",
        bytes_text(point.memory_bytes) if point.memory_bytes else "",
        worker_time(hours) if (hours := point.worker_hours_per_epoch) is not None else "",
        worth(study, point),
        "; ".join(filter(None, [overhead(point, most=2), "oversubscribed" * point.oversubscribed])),
    ]


def _picture(kind: Kind) -> list[str]:
    """Return a bar for each point: `#` for its speedup, `.` for the gap to the ideal."""
    most = max(max(point.speedup, point.workers) for point in kind.points)
    of = f" ({kind.letter})" if kind.letter else ""
    lines = [f"speedup{of}: # measured, . gap to the ideal"]
    for point in kind.points:
        reached = round(_LONGEST * point.speedup / most)
        missing = max(0, round(_LONGEST * point.workers / most) - reached)
        bar = ("#" * reached + "." * missing).ljust(_LONGEST)
        lines.append(f"{point.workers:>7}  {bar}  {point.speedup:.2f}x of {point.workers}")
    return lines


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield verdict.manager
    yield from filter(None, [verdict.serial, verdict.engineer, *verdict.others, *verdict.comparisons])
