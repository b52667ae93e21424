"""Formats the results of `bench step` as a table and one sentence."""

from collections.abc import Sequence

from samestep.base.units import seconds_text
from samestep.studies.bench.step_times import StepRow
from samestep.studies.bench.synchronizers import ALONE
from samestep.studies.bench.text import aligned

_HEAD = ("synchronizer", "step", "exposed", "efficiency")


def step_table(rows: Sequence[StepRow]) -> list[str]:
    """Return the lines of a table, the fastest synchronizer first."""
    body = [
        (
            row.sync,
            seconds_text(row.step_s),
            "-" if row.exposed_sync_s is None else seconds_text(row.exposed_sync_s),
            f"{row.efficiency:.0%}",
        )
        for row in sorted(rows, key=lambda row: -row.efficiency)
    ]
    return aligned([_HEAD, *body], left={0})


def step_answer(rows: Sequence[StepRow]) -> str:
    """Return one sentence on the cost of the best synchronizer, and of torch's DDP where measured."""
    ways = {row.sync: row for row in rows if row.sync != ALONE}
    best = max(ways.values(), key=lambda row: row.efficiency)
    answer = (
        f"{best.sync} keeps {best.workers} workers at {best.efficiency:.0%} of their speed without "
        "communication"
    )
    if "ddp" not in ways or best.sync == "ddp":
        return answer
    return f"{answer}, torch's DDP at {ways['ddp'].efficiency:.0%}"
