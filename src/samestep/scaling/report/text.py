"""Formats a scaling study as ASCII text: a table, bars of the speedup, and the verdict."""

import os
import sys
import textwrap
from collections.abc import Sequence

from samestep.report.page import text_table
from samestep.scaling.analysis.point_text import like_each, threads_of
from samestep.scaling.analysis.study import Study
from samestep.scaling.report.rows import (
    ALIKE,
    COST,
    FASTEST,
    INTERVAL,
    MEMORY,
    NO_POINTS,
    OVER,
    OVERHEAD,
    WORTH,
    Kind,
    cells,
    headings,
    kinds,
    rate_name,
)

_LONGEST = 48  # number of characters of the longest bar

_NO_BREAK = "\N{NO-BREAK SPACE}"
_OPTIONAL = (OVERHEAD, MEMORY, COST, "step", INTERVAL, ALIKE, FASTEST)
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
    """Return `study` as text, in lines of at most `width`."""
    found = kinds(study)
    verdict = [study.verdict.sentence if study.verdict else NO_POINTS]
    blocks = [
        [study.target],
        [f"{heading}." for heading in headings(found)],
        _table(study, found, width) if found else [],
    ]
    blocks += [_picture(kind) for kind in found if len(kind.points) > 1]
    blocks += [_wrapped(part, width) for part in (verdict, [note.text for note in study.notes])]
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
    names = ["workers", "threads", "kind", rate_name(study), INTERVAL, "speedup", OVER, ALIKE, "efficiency"]
    names += [FASTEST, "step", MEMORY, COST, WORTH, OVERHEAD]
    rows = [cells(study, kind, point) for kind in found for point in kind.rows]
    for row in rows:
        row[OVERHEAD] = "; ".join(filter(None, [row[OVERHEAD], row[""]]))
    names = [name for name in names if any(row[name] for row in rows)]
    below: list[str] = []
    for dropped in ("", *_OPTIONAL):
        names = [name for name in names if name != dropped]
        lines = text_table(names, [[row[name] for name in names] for row in rows])
        if dropped == OVERHEAD:
            known = [row for row in rows if row[OVERHEAD]]
            texts = [[row["workers"], row["kind"], f"{OVERHEAD}:", row[OVERHEAD]] for row in known]
            below = _wrapped([" ".join(filter(None, text)) for text in texts], width)
        if width is None or max(map(len, lines)) <= width:
            break
    return [*lines, *below]


def _picture(kind: Kind) -> list[str]:
    """Return a bar for each point: `#` for its speedup over one worker, `.` for the gap to the ideal.

    Bars of one scale can be compared, so the worker is the one that is like each of the workers.
    """
    base = kind.points[0]
    names = {one.cores_of: f"1 with {threads_of(one.cores_of, base)}" for one in kind.one_process}
    known = [
        (names.get(one.cores_of, f"{one.workers}"), one, one.workers * one.cores_of) for one in kind.rows
    ]
    most = max(cores * max(1, point.efficiency) for _, point, cores in known)
    wide = max(7, *(len(name) for name, _, _ in known))
    over = f" over {like_each(base)}" if like_each(base) else ""
    of = f" ({kind.letter})" if kind.letter else ""
    lines = [f"speedup{of}{over}: # measured, . gap to the ideal"]
    for name, point, cores in known:
        speedup = point.efficiency * cores
        reached = round(_LONGEST * speedup / most)
        missing = max(0, round(_LONGEST * cores / most) - reached)
        bar = ("#" * reached + "." * missing).ljust(_LONGEST)
        lines.append(f"{name:>{wide}}  {bar}  {speedup:.2f}x of {cores}")
    return lines
