"""What is drawn of runs: each figure takes one run, or several side by side."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from samestep.report.read import PHASES, Run, names
from samestep.report.scales import Bin, thin
from samestep.report.svg import Chart, Line, Mark

MOST = 400
"""Places along a curve."""
_WINDOWS = 120
"""Places along the areas of the phases."""


def curves(runs: Sequence[Run]) -> list[Chart]:
    """Return loss, accuracy and learning rate of `runs`, a line for each."""
    several = len(runs) > 1
    marks = () if several else _starts(runs[0])
    thinned = max((len(run.steps["step"]) for run in runs), default=0) > MOST
    note = "The line is the mean of neighbouring steps; the band goes from the least to the greatest."

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
    """Return where the time of a run's steps went, over the steps and by rank."""
    steps = run.steps["step"]
    phases = [
        Line(_spoken(name), thin(steps, _milliseconds(run.steps[name]), most=_WINDOWS)) for name in PHASES
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
            title="Where the time of a step goes",
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
            note="Each worker's share of the samples by the time its steps took; all wait for the slowest.",
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
    """Return times in ms, 0 for those that are missing: areas on top of each other have the same steps."""
    return [1e3 * one if math.isfinite(one) else 0.0 for one in seconds]


def _points(run: Run, name: str) -> list[Bin]:
    return _finite((row["step"], row[name]) for row in run.evaluations if name in row)


def _finite(points: Iterable[tuple[float, float]]) -> list[Bin]:
    """Return each point that has a place on the page."""
    return [Bin(x, y, y, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _starts(run: Run) -> tuple[Mark, ...]:
    """Return where the run was gone on with, and with how many workers."""
    resumed = [session for session in run.sessions[1:] if session["step"]]
    return tuple(Mark(one["step"], f"{one['world_size']} workers") for one in resumed[-12:])


def _spoken(phase: str) -> str:
    return phase.replace("_", " ")
