"""Builds the page of one run, and that of several runs side by side, with their charts."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from samestep import __version__
from samestep.base.step_phases import phase_text
from samestep.base.units import bytes_text, counted, seconds_text
from samestep.report.charts import LineChart, Lines
from samestep.report.drawing import PARTS, DataPoint, thin
from samestep.report.page import bullets, grid, page, section, table, title_of, write_text
from samestep.report.read_run import PHASES, Run, labels, names, read_run, table_in

# Shares of a step, and a part of the median speed, from which a hint is worth the time to follow it.
_DATA_SHARE = 0.10
_SYNC_SHARE = 0.30
_SLOW = 0.85

HintCode: TypeAlias = Literal[
    "loss-not-finite", "waiting-for-data", "exposed-communication", "slow-rank", "label"
]
"""Stable codes of hints."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A problem of a run, and what to do about it."""

    code: HintCode
    message: str
    rank: int | None = None


def headline(run: Run) -> str:
    """Return a one-sentence summary of the run."""
    subject = counted(run.workers, "worker") if run.workers else "A run"
    where = f"most of a step is {_largest_phase(run)}" if run.steps["step"] else "no step was taken"
    accuracy = (run.result or (run.evaluations or [{}])[-1]).get("accuracy")
    right = "" if accuracy is None else f"{accuracy:.2%} of the test set right"
    if run.result:
        trained = f"{counted(run.result['epochs'], 'epoch')}, {counted(run.result['steps'], 'step')}"
        return f"{subject}: {right} after {trained}, {run.result['seconds']:,.1f} s; {where}."
    return (
        f"{subject}: not finished, {counted(run.num_steps, 'step')} so far{right and ', '}{right}; {where}."
    )


def shares(run: Run) -> dict[str, float]:
    """Return the median seconds of each phase of a step, in order."""
    return {name: _median(run.steps[name]) for name in PHASES}


def hints(run: Run) -> Iterator[Hint]:
    """Yield the problems of a run."""
    lost = sum(not math.isfinite(loss) for loss in run.steps["loss"])
    if lost:
        steps = counted(lost, "step")
        yield Hint(
            "loss-not-finite",
            f"The loss was not finite in {steps}: try a lower learning rate, or --clip-norm.",
        )
    phases = shares(run)
    step_s = sum(phases.values()) or 1.0
    data, sync = phases["data"] / step_s, phases["exposed_sync"] / step_s
    if data > _DATA_SHARE:
        yield Hint(
            "waiting-for-data",
            f"{data:.0%} of a step is waiting for data: use more --loader-workers, or keep data in memory.",
        )
    if sync > _SYNC_SHARE:
        yield Hint(
            "exposed-communication",
            f"{sync:.0%} of a step is exposed communication of gradients: use fewer workers, a larger "
            "--batch-size (which changes the training), or --compress.",
        )
    yield from _slow_ranks(run)
    if run.config.get("label"):
        yield Hint("label", str(run.config["label"]))


def _slow_ranks(run: Run) -> Iterator[Hint]:
    """Yield the ranks that compute slower than the others since the last start.

    Before the last start, a rank's share of the batch and its machine can have been different.
    """
    began = run.sessions[-1]["step"] if run.sessions else 0
    rows = sorted((row for row in run.ranks if row["step"] > began), key=lambda row: row["rank"])
    busy = {
        rank: _median(row.get("forward", 0.0) + row.get("backward", 0.0) for row in windows)
        for rank, windows in groupby(rows, key=lambda row: row["rank"])
    }
    typical = median(busy.values()) if len(busy) > 1 else 0.0
    for rank, seconds in busy.items():
        if seconds and typical and typical / seconds < _SLOW:
            yield Hint(
                "slow-rank",
                f"Rank {rank} computes at {typical / seconds:.0%} of the median speed: the others wait.",
                rank=rank,
            )


def _largest_phase(run: Run) -> str:
    phases = shares(run)
    step_s = sum(phases.values())
    name = max(phases, key=lambda phase: phases[phase])
    return f"{name.replace('_', ' ')} ({phases[name] / step_s:.0%})" if step_s else "too short to measure"


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else 0.0


NAME = "report.html"
MOST = 400
"""Maximum number of points of a curve."""
_WINDOWS = 120  # maximum number of points of the areas of phases


def write_report(run_folder: Path) -> Path:
    """Write the page of a run into its folder, and return its path.

    Raises:
        UsageError: it is not a run folder, a file in it is damaged, or the page cannot be written.
    """
    run = read_run(run_folder)
    return write_text(run_folder / NAME, render(run))


def render(run: Run) -> str:
    """Return the page of a run as HTML."""
    return page(f"samestep: {run.name}", _body(run), foot=f"Made by samestep {__version__} from {run.path}.")


def _body(run: Run) -> Iterator[str]:
    yield f"<header>{title_of(run.name)}"
    yield f'<p class="headline">{escape(headline(run))}</p></header>'
    yield bullets([hint.message for hint in hints(run)], "hints")
    yield section("Training", grid(curves([run])))
    yield section("Speed", grid(times(run)), _phases(run))
    if run.sessions:
        yield section("Starts and machine", _sessions(run), _machine(run.sessions[-1]))
    yield section("Settings", table(sorted((name, _text(value)) for name, value in run.config.items())))
    if run.checkpoints:
        rows = [
            (
                checkpoint.name,
                "cannot be read" if checkpoint.num_bytes is None else bytes_text(checkpoint.num_bytes),
            )
            for checkpoint in run.checkpoints
        ]
        yield section("Checkpoints", table(rows, head=("name", "size")))


def _phases(run: Run) -> str:
    seconds = shares(run)
    whole = sum(seconds.values())
    if not whole:
        return ""
    rows = [
        (phase_text(name), seconds_text(seconds[name]), f"{seconds[name] / whole:.0%}") for name in PHASES
    ]
    return table([*rows, ("a step", seconds_text(whole), "100%")], head=("median of", "time", "share"))


def _sessions(run: Run) -> str:
    rows = [
        (
            "new" if session.get("checkpoint") is None else f"resumed from {session['checkpoint']}",
            int(session["step"]),
            int(session["world_size"]),
            *(_text(session.get(name, "")) for name in ("nodes", "launcher", "device", "threads")),
            _text(table_in(session, "provenance").get("created", "")),
        )
        for session in run.sessions
    ]
    head = ("start", "after step", "workers", "nodes", "launcher", "device", "threads each", "time (UTC)")
    return table(rows, head=head)


def _machine(session: Mapping[str, Any]) -> str:
    provenance = table_in(session, "provenance")
    facts = dict(table_in(provenance, "machine"))
    facts.pop("cpu", None)
    if isinstance(facts.get("memory_bytes"), int):
        facts["memory"] = bytes_text(facts.pop("memory_bytes"))
    command = provenance.get("command")
    rows = [("command", shlex.join(map(str, command)) if isinstance(command, list) else "")]
    return table([*rows, *((name, _text(value)) for name, value in facts.items())])


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def render_side_by_side(runs: Sequence[Run]) -> str:
    """Return the page of several runs as HTML."""
    title = f"{len(runs)} runs side by side"
    return page(f"samestep: {title}", _comparison(title, runs), foot=f"Made by samestep {__version__}.")


def differing(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the settings in which `runs` differ, with the value of each run."""
    names = sorted({name for run in runs for name in run.config})
    rows = [(name, *(str(run.config.get(name, "")) for run in runs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _comparison(title: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"<header><h1>{escape(title)}</h1></header>"
    yield section("Results", table(list(zip(names(runs), map(headline, runs), strict=True))), _results(runs))
    yield section("Training", grid(curves(runs)))
    rows = differing(runs)
    same = "" if rows else "<p>None.</p>"
    yield section("Settings that differ", table(rows, head=("setting", *names(runs))) if rows else same)


def _results(runs: Sequence[Run]) -> str:
    rows: list[tuple[object, ...]] = []
    for name, run in zip(names(runs), runs, strict=True):
        step_s = sum(shares(run).values())
        result = run.result
        rows.append(
            (
                name,
                run.workers or "",
                f"{result['accuracy']:.2%}" if result else "not finished",
                result.get("loss", ""),
                run.num_steps,
                result.get("seconds", ""),
                f"{result['samples_per_second']:,.0f}" if result else "",
                seconds_text(step_s),
            )
        )
    head = ("run", "workers", "accuracy", "test loss", "steps", "seconds", "samples/s", "median step")
    return table(rows, head=head)


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
        return {label: thin(run.steps["step"], run.steps[name], most=MOST) for label, run in named.items()}

    def evaluated(name: str, factor: float = 1.0) -> Lines:
        return {label: _points(run.evaluations, "step", name, factor) for label, run in named.items()}

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
        phase_text(name): thin(run.steps["step"], _milliseconds(run.steps[name]), most=_WINDOWS)
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
            lines={name: points for name, points in phases.items() if any(point.y > 0 for point in points)},
            stacked=True,
            colors={phase_text(name): PARTS[name][0] for name in PHASES},
            note="On rank 0.",
        ),
        chart(
            title="Speed of each worker",
            y="samples/s",
            lines=speeds,
            zero=True,
            note="Samples of each worker's shard per second of its steps; all workers wait for the slowest.",
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
    return [1e3 * second if math.isfinite(second) else 0.0 for second in seconds]


def _points(rows: Iterable[Mapping[str, Any]], x: str, y: str, factor: float = 1.0) -> list[DataPoint]:
    """Return the finite points of two columns."""
    points = ((row[x], factor * row[y]) for row in rows if y in row)
    return [DataPoint(a, b, b, b) for a, b in points if math.isfinite(a) and math.isfinite(b)]


def _starts(run: Run) -> list[tuple[float, str]]:
    """Return the steps from which the run was resumed, with its numbers of workers."""
    resumed = [session for session in run.sessions[1:] if session["step"]]
    return [(session["step"], f"{session['world_size']} workers") for session in resumed[-12:]]
