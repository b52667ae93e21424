"""Formats the numbers of a scaling study: cells and rows of tables, and the whole study as ASCII text."""

import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from samestep.base.units import bytes_text, count_text, percent, seconds_text
from samestep.report.drawing import PARTS
from samestep.report.page import text_table
from samestep.scaling.analysis.points import (
    UNIT,
    amount,
    like_each,
    notable_losses,
    phase_name,
    sync_words,
    threads_of,
    times,
)
from samestep.scaling.analysis.speedup import fair, one_process_of, rate_ratio, series_of
from samestep.scaling.analysis.study import Loss, Point, Study
from samestep.scaling.analysis.verdict import outdone

INTERVAL, EFFICIENCY, WORTH, OVERHEAD = "95 % interval", "efficiency", "worth it", "overhead"
OVER_PROCESS, OVER_WORKER, FASTEST = "over a process", "over a worker", "of the fastest"
STEP, MEMORY, COST = "step", "memory each", "workers' time per epoch"
"""Columns. `speedup_heads` has the names of the two with speedups."""
NO_POINTS = "No run was measured."
_MANY_H = 100  # hours from which minutes are not shown
_MOST_RANKS = 16  # rows of a table of ranks, more of which are not read
_MODES = {"strong": "strong scaling", "weak": "weak scaling", "neither": "with other batches"}


@dataclass(frozen=True, slots=True)
class Kind:
    """The points of one mode and variant, by number of workers, and one worker with the cores of several."""

    letter: str  # short name; empty if the study has only one kind
    name: str
    points: Sequence[Point]
    one_process: Sequence[Point] = field(default_factory=tuple)

    @property
    def rows(self) -> list[Point]:
        """All points, those of one worker first."""
        return [self.points[0], *self.one_process, *self.points[1:]]

    @property
    def title(self) -> str:
        """Letter and name."""
        return f"{self.letter}: {self.name}" if self.letter else self.name

    @property
    def has_speedup(self) -> bool:
        """Whether there are several numbers of workers."""
        return len({point.workers for point in self.points}) > 1

    @property
    def largest(self) -> Point:
        """The point with the most workers, not oversubscribed if possible."""
        return (fair(self.points) or self.points)[-1]


def kinds(study: Study) -> list[Kind]:
    """Return the kinds of `study` in the order of its points."""
    series = series_of(study.points)
    modes = {mode for mode, _ in series}
    groups = []
    for number, ((mode, variant), points) in enumerate(series.items()):
        letter = ascii_lowercase[number % 26] if len(series) > 1 else ""
        words = _MODES[mode] if len(modes) > 1 or not variant else ""
        name = ", ".join(filter(None, [words, variant]))
        groups.append(Kind(letter, name, points, one_process_of(points, study.one_process)))
    return groups


def headings(groups: Sequence[Kind]) -> list[str]:
    """Return the titles of kinds, after their common mode if the titles lack it."""
    modes = {kind.points[0].mode for kind in groups}
    titles = [kind.title for kind in groups]
    return titles if len(modes) > 1 else list(dict.fromkeys([*(_MODES[mode] for mode in modes), *titles]))


def results(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row for each point of `study`: its rate, speedup with intervals, and overhead."""
    groups = kinds(study)
    rows = [speed_cells(study, kind, point, intervals=True) for kind in groups for point in kind.rows]
    return _filled(rows, speedup_heads(groups))


def resources(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row for each point of `study`: step, batch, memory and cost; empty if unknown."""
    measured = [(kind, point) for kind in kinds(study) for point in kind.rows]
    if not any(any(resource_cells(point).values()) for _, point in measured):
        return [], []
    return _filled([_identity_cells(kind, point) | resource_cells(point) for kind, point in measured], {})


def speed_cells(study: Study, kind: Kind, point: Point, *, intervals: bool = False) -> dict[str, str]:
    """Return the rate of a point, and the numbers that follow from it, as text by column.

    With `intervals`, speedups have theirs in parentheses.
    """
    rate, interval = rates(study, point)
    causes = [overhead(point), "oversubscribed" if point.oversubscribed else ""]
    return _identity_cells(kind, point) | {
        rate_name(study): rate,
        INTERVAL: interval,
        **_speedup_cells(kind, point, intervals=intervals),
        EFFICIENCY: percent(point.efficiency) if kind.has_speedup else "",
        FASTEST: of_fastest(study, point),
        WORTH: worth(study, point),
        OVERHEAD: "; ".join(filter(None, causes)),
    }


def resource_cells(point: Point) -> dict[str, str]:
    """Return the step of a point, and its memory and cost, as text by column."""
    step_s, cost = sum(point.step_s.values()), point.worker_hours_per_epoch
    return {
        STEP: seconds_text(step_s) if step_s else "",
        "global batch": "" if point.global_batch is None else amount(point.global_batch),
        "synchronization": sync_words(point),
        "gradients": f"{count_text(point.exchange_bytes)}B" if point.exchange_bytes else "",
        MEMORY: bytes_text(point.memory_bytes) if point.memory_bytes else "",
        "on its device": bytes_text(point.device_memory_bytes) if point.device_memory_bytes else "",
        COST: "" if cost is None else worker_time(cost),
    }


def speedup_heads(groups: Sequence[Kind]) -> dict[str, str]:
    """Return the names of the two columns of speedups, which state what these are over.

    On processors that is one process with all cores of the most workers, as the script runs without samestep,
    and one worker like each. Kinds can have different numbers of cores, which are then left out.
    """
    workers = {like_each(kind.points[0]) for kind in groups}
    worker = workers.pop() if len(workers) == 1 else "1 worker"
    processes = {_process_words(kind) for kind in groups if kind.one_process}
    if not processes:
        return {OVER_WORKER: f"speedup over {worker}" if worker else "speedup"}
    process = processes.pop() if len(processes) == 1 else "1 process with all cores"
    return {OVER_PROCESS: f"speedup over {process}", OVER_WORKER: f"over {worker or '1 worker'}"}


def _process_words(kind: Kind) -> str:
    cores = threads_of(kind.one_process[-1].cores_of, kind.points[0]).split()[0]
    of_node = " of a node" if any(point.nodes > 1 for point in kind.points) else ""
    return f"1 process with all {cores} cores{of_node}"


def _filled(rows: Sequence[Mapping[str, str]], heads: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table, without empty columns; `heads` has names of columns."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    head = [heads.get(column, column) for column in columns]
    return head, [[row[column] for column in columns] for row in rows]


def _identity_cells(kind: Kind, point: Point) -> dict[str, str]:
    return {"workers": str(point.workers), "threads": _threads(kind, point), "kind": kind.letter}


def _speedup_cells(kind: Kind, point: Point, *, intervals: bool) -> dict[str, str]:
    """Return the speedups of a point over the one process with the most cores, and over one worker."""

    def over(baseline: Point) -> str:
        ratio = times(point.samples_per_second / baseline.samples_per_second * baseline.workers)
        between = rate_ratio(point, baseline) if intervals and point is not baseline else None
        if between is None:
            return ratio
        return f"{ratio} ({' to '.join(times(end * baseline.workers) for end in between)})"

    return {
        OVER_PROCESS: over(kind.one_process[-1]) if kind.one_process and kind.has_speedup else "",
        OVER_WORKER: over(kind.points[0]) if kind.has_speedup else "",
    }


def steps(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row for each point: time and share of each phase of a step."""
    known = [(kind, point) for kind in kinds(study) for point in kind.points if point.step_s]
    shown = [name for name in PARTS if any(parts(point)[name] > 0 for _, point in known)]
    rows = []
    for kind, point in known:
        seconds = parts(point)
        whole = sum(seconds.values()) or 1.0
        cells = [f"{seconds_text(seconds[name])} ({percent(seconds[name] / whole)})" for name in shown]
        rows.append([_named(kind, point), seconds_text(whole), *cells])
    return ["workers", "a step", *(PARTS[name][1] for name in shown)], rows


def ranks(point: Point) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row for each shown rank of `point`: time of each phase of its step."""
    by_rank = {number: rank_parts(point, number) for number in shown_ranks(point)}
    shown = [name for name in PARTS if any(seconds[name] > 0 for seconds in by_rank.values())]
    rows = [
        [str(number), point.ranks[number].host, *(seconds_text(seconds[name]) for name in shown)]
        for number, seconds in by_rank.items()
    ]
    return ["rank", "host", *(PARTS[name][1] for name in shown)], rows


def parts(point: Point) -> dict[str, float]:
    """Return the seconds of each part of a step, with waiting for other ranks separate if it is known."""
    seconds = {name: point.step_s.get(name, 0.0) for name in PARTS}
    if point.exchange_s is not None and point.waiting_s is not None:
        seconds["exposed_sync"], seconds["waiting"] = point.exchange_s, point.waiting_s
    return seconds


def rank_parts(point: Point, rank: int) -> dict[str, float]:
    """Return the seconds of each part of a rank's step; see `parts`."""
    seconds = {name: point.ranks[rank].step_s.get(name, 0.0) for name in PARTS}
    if point.exchange_s is not None:
        seconds["waiting"] = max(0.0, seconds["exposed_sync"] - point.exchange_s)
        seconds["exposed_sync"] -= seconds["waiting"]
    return seconds


def shown_ranks(point: Point) -> list[int]:
    """Return the ranks to show: all, or rank 0 and the slowest ones."""
    if len(point.ranks) <= _MOST_RANKS:
        return list(range(len(point.ranks)))

    def busy_s(rank: int) -> float:
        return sum(s for phase, s in point.ranks[rank].step_s.items() if phase != "exposed_sync")

    slowest = sorted(range(1, len(point.ranks)), key=busy_s, reverse=True)[: _MOST_RANKS - 1]
    return [0, *sorted(slowest)]


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and non-empty values of a mapping as text."""
    rows = []
    for name, value in values.items():
        text = _size(value) if name.endswith("_bytes") else _text(value)
        if text:
            rows.append((name.removesuffix("_bytes").replace("_", " "), text))
    return rows


def loss_text(loss: Loss) -> str:
    """Return one cause of overhead and its share."""
    words = ("slower " if loss.cause == "compute" else "") + phase_name(loss.cause)
    if loss.rank is not None:
        slow = f", slow in {phase_name(loss.phase)}" if loss.phase else ""
        words = f"rank {loss.rank}{' waits for data' if loss.phase == 'data' else slow}"
    return f"{words} ({percent(loss.share)})"


def overhead(point: Point) -> str:
    """Return the two largest causes of the overhead of `point`; empty if the measurement is inconclusive."""
    return "" if point.is_open else "; ".join(loss_text(loss) for loss in notable_losses(point)[:2])


def worth(study: Study, point: Point) -> str:
    """Return whether `point` reaches the required efficiency, or ``unknown`` if this is inconclusive.

    A question mark marks an uncertain answer. The result is empty without a required efficiency, and for the
    baseline.
    """
    of = point.workers, point.mode, point.variant
    series = series_of(study.points)[point.mode, point.variant]
    base = series[0]
    answers = study.verdict.worth if study.verdict else ()
    answer = next((answer for answer in answers if (answer.workers, answer.mode, answer.variant) == of), None)
    if answer is None or point.workers == base.workers:
        return ""
    oversubscribed = point.oversubscribed or base.oversubscribed
    if not answer.is_certain and (oversubscribed or point.is_open or outdone(series) is not None):
        return "unknown"
    return ("yes" if answer.is_worth else "no") + ("" if answer.is_certain else "?")


def rates(study: Study, point: Point) -> tuple[str, str]:
    """Return the speed of `point` and its interval, in the unit of `rate_name`."""
    middle, low, high = point.samples_per_second, point.samples_per_second_low, point.samples_per_second_high
    base = series_of(study.points)[point.mode, point.variant][0]
    runs = point.workers / base.workers if point.mode == "weak" else 1.0
    of_times = study.unit == UNIT
    rate = amount(runs / middle if of_times else middle)
    if low is None or high is None:
        return rate, ""
    ends = (runs / high, runs / low) if of_times else (low, high)
    return rate, " to ".join(map(amount, ends))


def of_fastest(study: Study, point: Point) -> str:
    """Return the rate of `point` by that of the fastest variant on as many workers, with its interval.

    It is empty without several variants. One worker does not communicate, so variants can share its runs.
    """
    variants = [
        variant
        for variant in fair(study.points)
        if (variant.cores_of, variant.mode, variant.workers) == (point.cores_of, point.mode, point.workers)
    ]
    if len(variants) < 2 or point.oversubscribed:
        return ""
    fastest = max(variants, key=lambda variant: variant.samples_per_second)
    ratio = times(point.samples_per_second / fastest.samples_per_second)
    between = None if point.runs == fastest.runs else rate_ratio(point, fastest)
    return ratio if between is None else f"{ratio} ({' to '.join(map(times, between))})"


def worker_time(hours: float) -> str:
    """Return the time of all workers as text.

    >>> [worker_time(hours) for hours in (0.0000845, 0.25, 1234)]
    ['304 ms', '15 min 0 s', '1,234 h']
    """
    return f"{hours:,.0f} h" if hours >= _MANY_H else seconds_text(3600 * hours)


def rate_name(study: Study) -> str:
    """Return the name of the speed of a point: ``seconds`` if only those of whole runs are known."""
    return "seconds" if study.unit == UNIT else study.unit


def _threads(kind: Kind, point: Point) -> str:
    """Return the threads of each worker if they differ between points, or one worker has those of several."""
    if kind.one_process:
        return threads_of(point.cores_of, kind.points[0]).split()[0]
    return str(point.threads or "") if len({point.threads for point in kind.points}) > 1 else ""


def _named(kind: Kind, point: Point) -> str:
    return f"{point.workers} {kind.letter}".strip()


def _size(value: object) -> str:
    sizes = value if isinstance(value, list) else [value]
    return ", ".join(bytes_text(size) if isinstance(size, int) else _text(size) for size in sizes)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if _text(item))
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(_text(item) for item in value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_LONGEST = 48  # number of characters of the longest bar

_NO_BREAK = "\N{NO-BREAK SPACE}"
_NARROW = 14  # number of characters up to which the name of a column has one line
_OPTIONAL = (OVERHEAD, MEMORY, COST, STEP, INTERVAL, OVER_WORKER, FASTEST)
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
    groups = kinds(study)
    verdict = [study.verdict.sentence if study.verdict else NO_POINTS]
    blocks = [
        [study.target],
        [f"{heading}." for heading in headings(groups)],
        _table(study, groups, width) if groups else [],
    ]
    blocks += [_picture(kind) for kind in groups if len(kind.points) > 1]
    blocks += [_wrapped(part, width) for part in (verdict, [note.text for note in study.notes])]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _wrapped(sentences: Sequence[str], width: int | None) -> list[str]:
    """Return sentences in lines of `width`, without a break in a flag or before `%`."""
    if width is None:
        return list(sentences)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    bound = (sentence.replace(" %", f"{_NO_BREAK}%") for sentence in sentences)
    return [line.replace(_NO_BREAK, " ") for sentence in bound for line in wrapper.wrap(sentence)]


def _table(study: Study, groups: list[Kind], width: int | None) -> list[str]:
    """Return the table, with the overhead below it if its column does not fit."""
    columns = ["workers", "threads", "kind", rate_name(study), INTERVAL, OVER_PROCESS, OVER_WORKER]
    columns += [EFFICIENCY, FASTEST, STEP, MEMORY, COST, WORTH, OVERHEAD]
    rows = [speed_cells(study, kind, point) | resource_cells(point) for kind in groups for point in kind.rows]
    heads = speedup_heads(groups)
    columns = [column for column in columns if any(row[column] for row in rows)]
    below: list[str] = []
    for dropped in ("", *_OPTIONAL):
        if dropped == OVER_WORKER and OVER_PROCESS not in columns:
            continue
        columns = [column for column in columns if column != dropped]
        texts = [[row[column] for column in columns] for row in rows]
        lines = text_table(_in_lines([heads.get(column, column) for column in columns], texts), texts)
        if dropped == OVERHEAD:
            below = _overhead_lines(rows, width)
        if width is None or max(map(len, lines)) <= width:
            break
    return [*lines, *below]


def _in_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of columns, in lines about as long as the cells; a number stays with its noun."""
    wrapped = []
    for name, cells in zip(head, zip(*rows, strict=True), strict=True):
        bound = re.sub(r"(?<=\d) ", _NO_BREAK, name)
        lines = textwrap.wrap(bound, max(_NARROW, *map(len, cells)))
        wrapped.append("\n".join(lines).replace(_NO_BREAK, " "))
    return wrapped


def _overhead_lines(rows: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    """Return an empty line and the overhead of each point that has one."""
    known = [row for row in rows if row[OVERHEAD]]
    texts = [[row["workers"], row["kind"], f"{OVERHEAD}:", row[OVERHEAD]] for row in known]
    return ["", *_wrapped([" ".join(filter(None, text)) for text in texts], width)] if known else []


def _picture(kind: Kind) -> list[str]:
    """Return a bar for each point: `#` for its speedup over one worker, `.` for the gap to the ideal.

    Bars of one scale can be compared, so the worker is the one that is like each of the workers.
    """
    base = kind.points[0]
    names = {point.cores_of: f"1 with {threads_of(point.cores_of, base)}" for point in kind.one_process}
    known = [
        (names.get(point.cores_of, f"{point.workers}"), point, point.workers * point.cores_of)
        for point in kind.rows
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
