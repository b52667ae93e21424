"""Builds the charts of one run, or of several runs side by side."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from samestep.studies.report.line_charts import Chart, Line, Mark
from samestep.studies.report.read_run import PHASES, Run, names
from samestep.studies.report.scales import Bin, thin

MOST = 400
"""Maximum number of points of a curve."""
_WINDOWS = 120
"""Maximum number of points of the areas of phases."""


def curves(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of loss, accuracy and learning rate, with a line for each run."""
    several = len(runs) > 1
    marks = () if several else _starts(runs[0])
    thinned = max((len(run.steps["step"]) for run in runs), default=0) > MOST
    note = "The line is the mean of neighboring steps; the band is their range."

    def column(name: str) -> list[Line]:
        drawn = (thin(run.steps["step"], run.steps[name], most=MOST) for run in runs)
        return list(map(Line, names(runs), drawn))

    return [
        Chart(
            title="Training loss",
            x="steps",
            y="loss",
            lines=column("loss"),
            marks=marks,
            note=note if thinned else "",
        ),
        Chart(
            title="Test accuracy",
            x="seconds of training" if several else "steps",
            y="right answers, %",
            lines=_evaluated(runs, lambda row: 100 * row["accuracy"], several=several),
            marks=marks,
        ),
        Chart(
            title="Test loss" if several else "Test and training loss by evaluation",
            x="seconds of training" if several else "steps",
            y="loss",
            lines=_evaluated(runs, lambda row: row["loss"], several=several)
            if several
            else [
                Line("test", _points(runs[0], "loss")),
                Line("training, mean since the last", _points(runs[0], "train_loss")),
            ],
            marks=marks,
        ),
        Chart(title="Learning rate", x="steps", y="rate", lines=column("lr"), marks=marks, zero=True),
    ]


def times(run: Run) -> list[Chart]:
    """Return the charts of a run's phases over the steps, and of its speed by rank."""
    steps = run.steps["step"]
    phases = [
        Line(name.replace("_", " "), thin(steps, _milliseconds(run.steps[name]), most=_WINDOWS))
        for name in PHASES
    ]
    shown = [line for line in phases if any(one.mean > 0 for one in line.bins)]
    by_rank = groupby(
        sorted(run.ranks, key=lambda row: (row["rank"], row["step"])), key=lambda row: row["rank"]
    )
    speeds = []
    for rank, rows in by_rank:
        own = list(rows)
        values = [row["samples_per_second"] for row in own]
        speeds.append(Line(f"rank {rank}", thin([row["step"] for row in own], values, most=_WINDOWS)))
    return [
        Chart(
            title="Phases of a step",
            x="steps",
            y="ms per step",
            lines=shown,
            marks=_starts(run),
            stacked=True,
            note="On rank 0.",
        ),
        Chart(
            title="Speed of each worker",
            x="steps",
            y="samples/s",
            lines=speeds,
            marks=_starts(run),
            zero=True,
            note="Samples of each worker's share per second of its steps; all workers wait for the slowest.",
        ),
    ]


def _evaluated(
    runs: Sequence[Run], value: Callable[[dict[str, float]], float], *, several: bool
) -> list[Line]:
    x = "seconds" if several else "step"
    return [
        Line(name, _finite((row[x], value(row)) for row in run.evaluations))
        for name, run in zip(names(runs), runs, strict=True)
    ]


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    """Return times in ms, with 0 for missing ones, since stacked areas need equal steps."""
    return [1e3 * one if math.isfinite(one) else 0.0 for one in seconds]


def _points(run: Run, name: str) -> list[Bin]:
    return _finite((row["step"], row[name]) for row in run.evaluations if name in row)


def _finite(points: Iterable[tuple[float, float]]) -> list[Bin]:
    """Return the finite points."""
    return [Bin(x, y, y, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _starts(run: Run) -> tuple[Mark, ...]:
    """Return marks at the steps from which the run was resumed, with its numbers of workers."""
    resumed = [session for session in run.sessions[1:] if session["step"]]
    return tuple(Mark(one["step"], f"{one['world_size']} workers") for one in resumed[-12:])
