"""Formats the numbers of a scaling study as rows of text, for a terminal and for a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.base.units import bytes_text, count_text, seconds_text
from samestep.studies.report.drawing import PARTS
from samestep.studies.scaling.analysis.confidence import is_vague
from samestep.studies.scaling.analysis.point_text import (
    amount,
    notable_losses,
    percent,
    phase_name,
    sync_words,
    threads_of,
)
from samestep.studies.scaling.analysis.points import UNIT
from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.study import Loss, Point, Study
from samestep.studies.scaling.analysis.supported_conclusions import knee_words, outdone
from samestep.studies.scaling.report.figures import parts, rank_parts, shown_ranks, times_text
from samestep.studies.scaling.report.series import Kind, kinds

INTERVAL, WORTH, OVERHEAD = "95 % interval", "worth it", "overhead"
OVER, ALIKE = "over one with", "over one like each"
MEMORY, COST = "memory each", "workers' time per epoch"
"""Names of columns."""
NO_POINTS = "No run was measured."
_MANY_H = 100  # hours from which minutes are not shown


def results(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row for each point of `study`, without empty columns."""
    rows = [cells(study, kind, point) for kind in kinds(study) for point in kind.rows]
    names = [name for name in rows[0] if name != WORTH and any(row[name] for row in rows)]
    return names, [[row[name] for name in names] for row in rows]


def cells(study: Study, kind: Kind, point: Point) -> dict[str, str]:
    """Return the numbers of a point as text, by column."""
    step_s, cost = sum(point.step_s.values()), point.worker_hours_per_epoch
    base, (rate, interval) = kind.points[0], rates(study, point)
    alike = point.efficiency * point.workers * point.cores_of
    return {
        "workers": str(point.workers),
        "threads": threads_of(point.cores_of, base).split()[0] if kind.one_process else "",
        "kind": kind.letter,
        rate_name(study): rate,
        INTERVAL: interval,
        "speedup": times_text(point.speedup) if kind.has_speedup else "",
        OVER: threads_of(point.baseline_cores_of, base) if kind.one_process else "",
        ALIKE: times_text(alike) if kind.one_process else "",
        "efficiency": percent(point.efficiency) if kind.has_speedup else "",
        "step": seconds_text(step_s) if step_s else "",
        "global batch": "" if point.global_batch is None else amount(point.global_batch),
        "synchronization": sync_words(point),
        "gradients": f"{count_text(point.exchange_bytes)}B" if point.exchange_bytes else "",
        MEMORY: bytes_text(point.memory_bytes) if point.memory_bytes else "",
        "on its device": bytes_text(point.device_memory_bytes) if point.device_memory_bytes else "",
        COST: "" if cost is None else worker_time(cost),
        WORTH: worth(study, point),
        OVERHEAD: overhead(point, most=2),
        "": "oversubscribed" if point.oversubscribed else "",
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


def fit_texts(study: Study) -> list[str]:
    """Return the results of each fit and the knee, for each kind of points."""
    found = []
    for kind in kinds(study):
        first = kind.points[0]
        fits = [one.words for one in study.fit if (one.mode, one.variant) == (first.mode, first.variant)]
        texts = filter(None, [*fits, knee_words(kind.points)])
        found += [f"{kind.title}: {words}" if kind.letter else words for words in texts]
    return found


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


def overhead(point: Point, *, most: int) -> str:
    """Return the largest causes of the overhead of `point`; empty if the measurement is inconclusive."""
    return "" if point.is_open else "; ".join(loss_text(loss) for loss in notable_losses(point)[:most])


def worth(study: Study, point: Point) -> str:
    """Return whether `point` reaches the required efficiency, or ``unknown`` if this is inconclusive.

    A question mark marks an uncertain answer. The result is empty without a required efficiency, and for the
    baseline.
    """
    of = point.workers, point.mode, point.variant
    alike = series_of(study.points)[point.mode, point.variant]
    base = alike[0]
    answers = study.verdict.worth if study.verdict else ()
    one = next((one for one in answers if (one.workers, one.mode, one.variant) == of), None)
    if one is None or point.workers == base.workers:
        return ""
    oversubscribed = point.oversubscribed or base.oversubscribed
    if not one.is_certain and (oversubscribed or point.is_open or outdone(alike) is not None):
        return "unknown"
    return ("yes" if one.is_worth else "no") + ("" if one.is_certain else "?")


def rates(study: Study, point: Point) -> tuple[str, str]:
    """Return the speed of `point` and its interval, in the unit of `rate_name`.

    An interval that is too wide to be useful is ``unknown``.
    """
    middle, low, high = point.samples_per_second, point.samples_per_second_low, point.samples_per_second_high
    base = series_of(study.points)[point.mode, point.variant][0]
    runs = point.workers / base.workers if point.mode == "weak" else 1.0
    of_times = study.unit == UNIT
    rate = amount(runs / middle if of_times else middle)
    if low is None or high is None:
        return rate, ""
    if is_vague((low, high)):
        return rate, "unknown"
    ends = (runs / high, runs / low) if of_times else (low, high)
    return rate, " to ".join(map(amount, ends))


def worker_time(hours: float) -> str:
    """Return the time of all workers as text.

    >>> [worker_time(hours) for hours in (0.0000845, 0.25, 1234)]
    ['304 ms', '15 min 0 s', '1,234 h']
    """
    return f"{hours:,.0f} h" if hours >= _MANY_H else seconds_text(3600 * hours)


def rate_name(study: Study) -> str:
    """Return the name of the speed of a point: ``seconds`` if only those of whole runs are known."""
    return "seconds" if study.unit == UNIT else study.unit


def _named(kind: Kind, point: Point) -> str:
    return f"{point.workers} {kind.letter}".strip()


def _size(value: object) -> str:
    sizes = value if isinstance(value, list) else [value]
    return ", ".join(bytes_text(size) if isinstance(size, int) else _text(size) for size in sizes)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if _text(one))
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(_text(one) for one in value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
