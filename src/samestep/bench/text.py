"""Formats the results of a benchmark as tables, each with one line about the fastest."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from samestep.base.units import bytes_text, seconds_text
from samestep.bench.figures import Row, as_good, best_text, crossovers
from samestep.bench.request import ALONE
from samestep.report.page import text_table

if TYPE_CHECKING:
    from samestep.bench.step_times import StepRow

_HEAD = ("size", "algorithm", "median", "quartiles", "algbw GB/s", "busbw GB/s")
STEP_HEAD = ("synchronizer", "step", "exposed", "efficiency", "quartiles")


def report_text(rows: Sequence[Row]) -> str:
    """Return the table of a collective, and its fastest algorithms by size."""
    return "\n".join([*table(rows), "", f"fastest: {fastest_text(rows)}"])


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of all figures, fastest first within a size."""
    body = []
    shown = None
    for row in sorted(rows, key=lambda row: (row.bytes, row.median_s)):
        body.append(
            (
                "" if row.bytes == shown else bytes_text(row.bytes),
                row.algorithm,
                seconds_text(row.median_s),
                " - ".join(map(seconds_text, row.spread_s)),
                f"{row.algbw_bytes_per_s / 1e9:.3g}",
                f"{row.busbw_bytes_per_s / 1e9:.3g}",
            )
        )
        shown = row.bytes
    return text_table(_HEAD, body)


def fastest_text(rows: Sequence[Row]) -> str:
    """Return the fastest algorithms by size, in one line."""
    return "; ".join(f"{best_text(names)} from {bytes_text(nbytes)}" for nbytes, names in crossovers(rows))


def step_cells(rows: Sequence["StepRow"]) -> list[tuple[str, ...]]:
    """Return the cells of a table under `STEP_HEAD`, the fastest synchronizer first."""
    return [
        (
            row.sync,
            seconds_text(row.step_s),
            "-" if row.exposed_sync_s is None else seconds_text(row.exposed_sync_s),
            f"{row.efficiency:.0%}",
            " - ".join(f"{quartile:.0%}" for quartile in row.efficiency_quartiles),
        )
        for row in sorted(rows, key=lambda row: -row.efficiency)
    ]


def fastest_synchronizer(rows: Sequence["StepRow"]) -> str:
    """Return the synchronizer with the highest efficiency, or those that are as fast."""
    ordered = sorted((row for row in rows if row.sync != ALONE), key=lambda row: -row.efficiency)
    return best_text([row.sync for row in as_good(ordered, lambda row: row.efficiency_quartiles)])
