"""The figures of a scaling study as rows of texts, for a terminal as for a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.base.units import bytes_text, count_text, seconds_text
from samestep.report.scaling.figures import PARTS, parts, rank_parts, shown_ranks, times_text
from samestep.report.scaling.series import Kind, kinds
from samestep.scaling.certainty import is_open, knee_words
from samestep.scaling.serial import outdone
from samestep.scaling.study import Loss, Point, Study
from samestep.scaling.times import UNIT
from samestep.scaling.words import amount, is_vague, notable_losses, percent, sync_words

_MANY_H = 100
"""From so many hours on their minutes are of no interest."""


def results(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a head and a row for each point of `study`; a column that nothing is known for is left out."""
    found = kinds(study)
    head = [
        "workers",
        "kind",
        pace_name(study),
        "95 % interval",
        "speedup",
        "efficiency",
        "step",
        "global batch",
        "exchange",
        "gradients",
    ]
    head += ["memory each", "on its device", "workers' time per epoch", "lost most to", ""]
    rows = [_result(study, kind, point) for kind in found for point in kind.points]
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    return [head[k] for k in kept], [[row[k] for k in kept] for row in rows]


def steps(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return a head and a row for each point: what each part of a step takes, and its share."""
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
    """Return a head and a row for each rank of `point` that is shown: its own step by phase."""
    told = {number: rank_parts(point, number) for number in shown_ranks(point)}
    shown = [name for name in PARTS if any(seconds[name] > 0 for seconds in told.values())]
    rows = [
        [str(number), point.ranks[number].host, *(seconds_text(seconds[name]) for name in shown)]
        for number, seconds in told.items()
    ]
    return ["rank", "host", *(PARTS[name][1] for name in shown)], rows


def followed(study: Study) -> list[str]:
    """Return what each model says and where the knee is; of which points where there are several kinds."""
    said = []
    for kind in kinds(study):
        first = kind.points[0]
        fits = [one.words for one in study.fit if (one.mode, one.variant) == (first.mode, first.variant)]
        told = filter(None, [*fits, knee_words(kind.points)])
        said += [f"{kind.title}: {words}" if kind.letter else words for words in told]
    return said


def of_numbers(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that hold numbers and nothing else, each perhaps with its unit."""
    columns = range(len(rows[0])) if rows else ()
    return [k for k in columns if all(row[k][:1].isdigit() or not row[k] for row in rows)]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns; those of numbers stand at the right."""
    whole = [head, *rows]
    widths = [max(len(row[k]) for row in whole) for k in range(len(head))]
    right = of_numbers(rows)

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.rjust(width) if k in right else cell.ljust(width) for k, (cell, width) in cells)

    return [line(row).rstrip() for row in whole]


def facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of a mapping as texts; what is empty is left out."""
    rows = []
    for name, value in told.items():
        text = _size(value) if name.endswith("_bytes") else _text(value)
        if text:
            rows.append((name.removesuffix("_bytes").replace("_", " "), text))
    return rows


def loss_words(loss: Loss) -> str:
    """Return why a point is not as fast as the ideal, in a few words."""
    words = _CAUSES.get(loss.cause, loss.cause)
    if loss.rank is not None:
        slow = f", slow in {_phase(loss.phase)}" if loss.phase else ""
        words = f"rank {loss.rank}{' waits for data' if loss.phase == 'data' else slow}"
    return f"{words} ({percent(loss.share)})"


def lost(point: Point, *, most: int) -> str:
    """Return the largest reasons why `point` is not as fast as the ideal; empty where none can be told."""
    return "" if is_open(point) else "; ".join(loss_words(loss) for loss in notable_losses(point)[:most])


def worth(study: Study, point: Point) -> str:
    """Return whether `point` reaches the efficiency that was asked for; ``unknown`` where nobody can tell.

    Empty where none was, and at the fewest workers, which the others are compared with.
    """
    of = point.workers, point.mode, point.variant
    alike = [one for one in study.points if (one.mode, one.variant) == of[1:]]
    answers = study.verdict.worth if study.verdict else ()
    one = next((one for one in answers if (one.workers, one.mode, one.variant) == of), None)
    if one is None or point.workers == min(each.workers for each in alike):
        return ""
    crowded = point.oversubscribed or min(alike, key=lambda each: each.workers).oversubscribed
    if not one.is_certain and (crowded or is_open(point) or outdone(alike) is not None):
        return "unknown"
    return ("yes" if one.is_worth else "no") + ("" if one.is_certain else "?")


def paces(study: Study, point: Point) -> tuple[str, str]:
    """Return how fast `point` is, and the interval of it, by what `pace_name` says.

    An interval that says nothing is not told by its ends.
    """
    middle, low, high = point.samples_per_second, point.samples_per_second_low, point.samples_per_second_high
    alike = (one.workers for one in study.points if (one.mode, one.variant) == (point.mode, point.variant))
    runs = point.workers / min(alike) if point.mode == "weak" else 1.0
    of_times = study.unit == UNIT
    pace = amount(runs / middle if of_times else middle)
    if low is None or high is None:
        return pace, ""
    if is_vague((low, high)):
        return pace, "unknown"
    return (
        pace,
        f"{amount(runs / high)} to {amount(runs / low)}" if of_times else f"{amount(low)} to {amount(high)}",
    )


def worker_time(hours: float) -> str:
    """Return time of workers as people read it.

    >>> [worker_time(hours) for hours in (0.0000845, 0.25, 1234)]
    ['304 ms', '15 min 0 s', '1,234 h']
    """
    return f"{hours:,.0f} h" if hours >= _MANY_H else seconds_text(3600 * hours)


def pace_name(study: Study) -> str:
    """Return what is told of a point's speed: the seconds of a run where nothing else is known."""
    return "seconds" if study.unit == UNIT else study.unit


def _result(study: Study, kind: Kind, point: Point) -> list[str]:
    step_s = sum(point.step_s.values())
    cost = point.worker_hours_per_epoch
    return [
        str(point.workers),
        kind.letter,
        *paces(study, point),
        times_text(point.speedup) if kind.has_speedup else "",
        percent(point.efficiency) if kind.has_speedup else "",
        seconds_text(step_s) if step_s else "",
        "" if point.global_batch is None else amount(point.global_batch),
        sync_words(point),
        f"{count_text(point.exchange_bytes)}B" if point.exchange_bytes else "",
        bytes_text(point.memory_bytes) if point.memory_bytes else "",
        bytes_text(point.device_memory_bytes) if point.device_memory_bytes else "",
        "" if cost is None else worker_time(cost),
        lost(point, most=2),
        "oversubscribed" if point.oversubscribed else "",
    ]


def _named(kind: Kind, point: Point) -> str:
    return f"{point.workers} {kind.letter}".strip()


def _phase(name: str) -> str:
    return PARTS[name][1] if name in PARTS else name


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


_CAUSES = {
    "straggler": "a slow rank",
    "waiting": "waiting for other ranks",
    "exchange": "exposed exchange",
    "data": "waiting for data",
    "to_device": "copies to the device",
    "compute": "slower forward and backward",
    "optimizer": "the optimizer",
    "other": "other",
}
