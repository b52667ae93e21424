"""Builds the charts of one run, or of several runs side by side."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from samestep.studies.report.drawing import PARTS
from samestep.studies.report.line_charts import LineChart, Lines
from samestep.studies.report.read_run import PHASES, Run, labels
from samestep.studies.report.scales import DataPoint, thin

MOST = 400
"""Maximum number of points of a curve."""
_WINDOWS = 120  # maximum number of points of the areas of phases


def charts(runs: Sequence[Run]) -> list[LineChart]:
    """Return all charts of a run, or of several runs side by side."""
    return [*curves(runs), *(times(runs[0]) if len(runs) == 1 else ())]


def curves(runs: Sequence[Run]) -> list[LineChart]:
    """Return the charts of loss, accuracy and learning rate, with a line for each run."""
    several = len(runs) > 1
    marks = () if several else _starts(runs[0])
    thinned = max((len(run.steps["step"]) for run in runs), default=0) > MOST
    note = "The line is the mean of neighboring steps; the band is their range." if thinned else ""
    named = dict(zip(labels(runs), runs, strict=True))

    def column(name: str) -> Lines:
        return {own: thin(run.steps["step"], run.steps[name], most=MOST) for own, run in named.items()}

    def evaluated(name: str, factor: float = 1.0) -> Lines:
        return {own: _points(run.evaluations, "step", name, factor) for own, run in named.items()}

    test_loss, losses = "Test loss", evaluated("loss")
    if not several:
        test_loss = "Test and training loss by evaluation"
        (test,), training = losses.values(), _points(runs[0].evaluations, "step", "train_loss")
        losses = {"test": test, "training, mean since the last": training}
    accuracy, loss, rate = evaluated("accuracy", 100), column("loss"), column("lr")
    chart = partial(LineChart, x="steps", marks=marks, ends=_ends(runs))
    return [
        chart(title="Training loss", y="loss", lines=loss, note=note),
        chart(title="Test accuracy", y="right answers, %", lines=accuracy, most=100),
        chart(title=test_loss, name="test loss", y="loss", lines=losses),
        chart(title="Learning rate", y="rate", lines=rate, zero=True),
    ]


def times(run: Run) -> list[LineChart]:
    """Return the charts of a run's phases over the steps, and of its speed by rank."""
    phases = {
        name.replace("_", " "): thin(run.steps["step"], _milliseconds(run.steps[name]), most=_WINDOWS)
        for name in PHASES
    }
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(run.ranks, key=lambda row: (row["rank"], row["step"])):
        by_rank.setdefault(row["rank"], []).append(row)
    speeds = {
        f"rank {rank}": thin(_column(rows, "step"), _column(rows, "samples_per_second"), most=_WINDOWS)
        for rank, rows in by_rank.items()
    }
    chart = partial(LineChart, x="steps", marks=_starts(run), ends=_ends([run]))
    return [
        chart(
            title="Phases of a step",
            y="ms per step",
            lines={name: points for name, points in phases.items() if any(one.y > 0 for one in points)},
            stacked=True,
            colors={name.replace("_", " "): PARTS[name][0] for name in PHASES},
            note="On rank 0.",
        ),
        chart(
            title="Speed of each worker",
            y="samples/s",
            lines=speeds,
            zero=True,
            note="Samples of each worker's share per second of its steps; all workers wait for the slowest.",
        ),
    ]


def _ends(runs: Sequence[Run]) -> tuple[float, ...]:
    """Return the first and the last step of all runs, so that the axes of their charts line up."""
    steps = [step for run in runs for step in (run.steps["step"][:1] + run.steps["step"][-1:])]
    return (min(steps), max(steps)) if steps else ()


def _column(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows]


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    """Return times in ms, with 0 for missing ones, since stacked areas need equal steps."""
    return [1e3 * one if math.isfinite(one) else 0.0 for one in seconds]


def _points(rows: Iterable[Mapping[str, Any]], x: str, y: str, factor: float = 1.0) -> list[DataPoint]:
    """Return the finite points of two columns."""
    points = ((row[x], factor * row[y]) for row in rows if y in row)
    return [DataPoint(a, b, b, b) for a, b in points if math.isfinite(a) and math.isfinite(b)]


def _starts(run: Run) -> list[tuple[float, str]]:
    """Return the steps from which the run was resumed, with its numbers of workers."""
    resumed = [session for session in run.sessions[1:] if session["step"]]
    return [(one["step"], f"{one['world_size']} workers") for one in resumed[-12:]]
