"""Measures the speedup of more workers at a constant global batch, by `samestep scale`."""

import tempfile
from pathlib import Path
from typing import Any

from samestep.base.folders import temporary_directory
from samestep.base.units import counted, seconds_text
from samestep_lab.experiments.commands import json_of
from samestep_lab.experiments.experiment import Outcome, Setup, Table

STEPS, REPEATS = 30, 3


def numbers_of_workers(most: int) -> list[int]:
    """Return the powers of 2 below `most`, and `most`.

    >>> numbers_of_workers(6)
    [1, 2, 4, 6]
    """
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def study_of(setup: Setup, *arguments: str, steps: int, repeats: int) -> dict[str, Any]:
    """Return the study of `samestep scale` with some arguments."""
    flags = ["--steps", str(steps), "--repeats", str(repeats), "--oversubscribe"]
    if setup.data_dir is not None:
        flags += ["--data-dir", str(setup.data_dir)]
    with tempfile.TemporaryDirectory(dir=temporary_directory()) as folder:
        return json_of(["scale", setup.data, *arguments, *flags, "--out", str(Path(folder) / "study")])


def interval_of(point: dict[str, Any], name: str = "samples_per_second", form: str = ",.0f") -> str:
    """Return a figure of a point with its 95 % interval."""
    value, low, high = (point[f"{name}{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:{form}}" + ("" if None in (low, high) else f" ({low:{form}} - {high:{form}})")


def run(setup: Setup, *, steps: int = STEPS, repeats: int = REPEATS) -> Outcome:
    """Run the experiment."""
    counts = ",".join(map(str, numbers_of_workers(setup.workers)))
    study = study_of(setup, "-n", counts, "--scaling", "strong", steps=steps, repeats=repeats)
    names = ("workers", "samples_per_second", "speedup", "efficiency", "oversubscribed", "step_s")
    rows = [_row(point) for point in (*study["points"], *study["one_process"])]
    head = (
        "workers",
        "samples/s (95 % interval)",
        "speedup (95 % interval)",
        "over 1 process or worker with",
        "efficiency",
        "step",
        "waits for communication",
        "oversubscribed",
    )
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=" ".join([study["verdict"]["sentence"], *(note["text"] for note in study["notes"])]),
        values={"points": [{name: point[name] for name in names} for point in study["points"]]},
    )


def _row(point: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a point; of one worker with the threads of several too."""
    several = point["cores_of"]
    threads = (point["threads"] or several) // several * point["baseline_cores_of"]
    return (
        f"{point['workers']} with the threads of {several}" if several > 1 else str(point["workers"]),
        interval_of(point),
        interval_of(point, "speedup", ".2f"),
        counted(threads, "thread"),
        "-" if point["efficiency"] is None else f"{point['efficiency']:.2f}",
        seconds_text(sum(point["step_s"].values())),
        seconds_text(point["step_s"].get("exposed_sync", 0.0)),
        "yes" if point["oversubscribed"] else "no",
    )
