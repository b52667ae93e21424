"""Formats the results of a benchmark as tables, one sentence, and a chart."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from samestep.base.units import bytes_text, seconds_text
from samestep.studies.bench.figures import (
    Row,
    as_good,
    best_text,
    bus_factor,
    crossovers,
    fastest,
    fit,
    overlap,
)
from samestep.studies.bench.request import ALONE, ONE_PROCESS, Request
from samestep.studies.report.line_charts import PointChart
from samestep.studies.report.page import text_table
from samestep.studies.report.scales import DataPoint

if TYPE_CHECKING:
    from samestep.studies.bench.measurement import Report
    from samestep.studies.bench.step_times import StepRow

ANSWERED = (64 << 10, 25 << 20)
"""The sizes in the summary sentence, where measured: a small one, and DDP's bucket."""

_HEAD = ("size", "algorithm", "median", "quartiles", "algbw GB/s", "busbw GB/s", "of copying")

Times = Mapping[str, Mapping[int, float]]
"""Median seconds by algorithm and bytes."""


def report_text(report: "Report", request: Request, ranks: int) -> str:
    """Return the text about a measurement: its conditions, its tables, and its answer."""
    times = times_of(report.rows)
    largest = max(report.copying)
    rounds = sorted({min(report.rounds.values()), max(report.rounds.values())})
    head = (
        f"{_title(request, ranks)}, {' to '.join(map(str, rounds))} rounds of each size; all ranks at once "
        f"copy memory at {report.copying[largest] / 1e9:.3g} GB/s each ({bytes_text(largest)})"
    )
    paragraphs = ([head], table(report.rows), fits(times), results(report.rows))
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def chart(report: "Report", request: Request, ranks: int) -> PointChart:
    """Return the chart of a measurement."""
    factor = bus_factor(request.collective, ranks)
    copying = {nbytes: factor * nbytes / speed for nbytes, speed in report.copying.items()}
    name, title = _name(request), _title(request, ranks)
    return times_chart(times_of(report.rows), copying=copying, title=title, name=name)


def _name(request: Request) -> str:
    return request.collective.replace("_", "-")


def _title(request: Request, ranks: int) -> str:
    return f"{_name(request)} of {request.dtype} among {ranks} ranks"


def times_of(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return the median seconds of each algorithm by bytes."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row.algorithm, {})[row.bytes] = row.median_s
    return times


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of all figures, fastest first within a size."""
    body = []
    shown = None
    for row in sorted(rows, key=lambda row: (row.bytes, row.median_s)):
        low, high = row.spread_s
        body.append(
            (
                "" if row.bytes == shown else bytes_text(row.bytes),
                row.algorithm,
                seconds_text(row.median_s),
                f"{seconds_text(low)} - {seconds_text(high)}",
                f"{row.algbw_bytes_per_s / 1e9:.3g}",
                f"{row.busbw_bytes_per_s / 1e9:.3g}",
                f"{row.limit_share:.1%}",
            )
        )
        shown = row.bytes
    return text_table(_HEAD, body)


def fits(times: Times) -> list[str]:
    """Return the lines of a table of alpha and beta; empty if only one size was measured."""
    if max(map(len, times.values())) < 2:
        return []
    head = ("algorithm", "alpha", "beta", "1/beta")
    body = []
    for name, by_size in times.items():
        line = fit(by_size)
        rate = f"{1 / line.beta / 1e9:.3g} GB/s" if line.beta else "-"
        body.append((name, seconds_text(line.alpha), f"{line.beta * 1e9:.3g} ns/B", rate))
    return text_table(head, body)


def results(rows: Sequence[Row]) -> list[str]:
    """Return the lines below the tables: the fastest algorithms by size, and the answer.

    If there is one size, and no difference between its fastest ones, the answer names them all.
    """
    best = list(fastest(rows).values())
    is_in_answer = len(best) == 1 and len(best[0]) > 1
    return [answer(rows)] if is_in_answer else [f"fastest: {fastest_text(rows)}", answer(rows)]


def fastest_text(rows: Sequence[Row]) -> str:
    """Return the fastest algorithms by size, in one line."""
    return "; ".join(f"{best_text(names)} from {bytes_text(nbytes)}" for nbytes, names in crossovers(rows))


def answer(rows: Sequence[Row]) -> str:
    """Return one sentence that compares the fastest with the back end's own algorithm, or with the second."""
    best = fastest(rows)
    compared = [size for size in ANSWERED if size in best] or [max(best)]
    return "; ".join(
        _compared({row.algorithm: row.median_s for row in rows if row.bytes == nbytes}, best[nbytes], nbytes)
        for nbytes in compared
    )


def _compared(here: Mapping[str, float], best: Sequence[str], nbytes: int) -> str:
    """Compare the algorithms of one size by their median seconds.

    `best` are the fastest one, and those from which no difference is measured.
    """
    first, *rest = sorted(here, key=lambda name: here[name])
    at = bytes_text(nbytes)
    if not rest:
        return f"{first} takes {seconds_text(here[first])} at {at}"
    other = "native" if "native" in rest else rest[0]
    if other in best:
        return f"{best_text(best)} at {at}"
    ratio = here[other] / here[first]
    how = f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"
    faster = f"{first} is {how} {other} at {at}: {seconds_text(here[first])}, not {seconds_text(here[other])}"
    return f"{faster} ({best_text(best)})" if len(best) > 1 else faster


def times_chart(
    times: Mapping[str, Mapping[int, float]], *, copying: Mapping[int, float], title: str, name: str
) -> PointChart:
    """Return a chart of the seconds of each algorithm by bytes, with logarithmic axes.

    `copying` are the seconds of copying the fewest bytes that must move, at each size, while all ranks copy.
    """
    return PointChart(
        title=title,
        name=name,
        x="size",
        y="time",
        lines={
            algorithm: [DataPoint(nbytes, seconds, seconds, seconds) for nbytes, seconds in by_size.items()]
            for algorithm, by_size in times.items()
        },
        ideal=lambda nbytes: copying[int(nbytes)],
        ideal_name="copying memory",
        x_text=lambda nbytes: bytes_text(int(nbytes)),
        base=10,
        tick=seconds_text,
        text=seconds_text,
        height=400,
    )


STEP_HEAD = ("synchronizer", "step", "exposed", "efficiency", "quartiles")


def step_cells(rows: Sequence["StepRow"]) -> list[tuple[str, ...]]:
    """Return the cells of a table under `STEP_HEAD`, the fastest synchronizer first."""
    return [
        (
            row.sync,
            seconds_text(row.step_s),
            "-" if row.exposed_sync_s is None else seconds_text(row.exposed_sync_s),
            f"{row.efficiency:.0%}",
            " - ".join(f"{one:.0%}" for one in row.efficiency_quartiles),
        )
        for row in sorted(rows, key=lambda row: -row.efficiency)
    ]


def step_answer(rows: Sequence["StepRow"]) -> str:
    """Return one sentence on the cost of the best synchronizer, and on DDP and one process where measured."""
    ways = {row.sync: row for row in rows if row.sync != ALONE}
    one = ways.pop(ONE_PROCESS, None)
    if one is not None and not ways:
        return f"one process with all their cores takes {seconds_text(one.step_s)} for a step"
    ordered = sorted(ways.values(), key=lambda row: -row.efficiency)
    best, *others = leaders = as_good(ordered, lambda row: row.efficiency_quartiles)
    names = [row.sync for row in leaders]
    keeps = f"{best_text(names)}, which keep" if others else f"{best.sync} keeps"
    least = f"{leaders[-1].efficiency:.0%} to " if others else ""
    speed = f"{best.workers} workers at {least}{best.efficiency:.0%} of their speed without communication"
    answer = f"{keeps} {speed}"
    if "ddp" in ways and "ddp" not in names:
        answer += f", torch's DDP at {ways['ddp'].efficiency:.0%}"
    if one is None:
        return answer
    if overlap(one.efficiency_quartiles, best.efficiency_quartiles):
        return f"{answer}; no difference from one process with all their cores is measured"
    ratio = one.step_s / best.step_s
    return f"{answer}; {best.sync} is {ratio:.2f} times as fast as one process with all their cores"
