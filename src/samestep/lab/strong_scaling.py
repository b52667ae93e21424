"""Measures the speedup of more workers at a constant global batch, by `samestep scale`."""

import tempfile
from pathlib import Path
from typing import Any

from samestep.lab.commands import json_of
from samestep.lab.experiment import Outcome, Setup, Table

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
    with tempfile.TemporaryDirectory() as folder:
        return json_of(["scale", setup.data, *arguments, *flags, "--out", str(Path(folder) / "study")])


def interval_of(point: dict[str, Any]) -> str:
    """Return the rate of a point with its 95 % interval, in samples/s."""
    ends = (point["samples_per_second_low"], point["samples_per_second_high"])
    rate = f"{point['samples_per_second']:,.0f}"
    return rate if None in ends else f"{rate} ({ends[0]:,.0f} - {ends[1]:,.0f})"


def run(setup: Setup, *, steps: int = STEPS, repeats: int = REPEATS) -> Outcome:
    """Run the experiment."""
    counts = ",".join(map(str, numbers_of_workers(setup.workers)))
    study = study_of(setup, "-n", counts, "--scaling", "strong", steps=steps, repeats=repeats)
    names = ("workers", "samples_per_second", "speedup", "efficiency", "oversubscribed")
    rows = [
        (
            str(one["workers"]),
            interval_of(one),
            *("-" if one[name] is None else f"{one[name]:.2f}" for name in ("speedup", "efficiency")),
            "yes" if one["oversubscribed"] else "no",
        )
        for one in study["points"]
    ]
    head = ("workers", "samples/s (95 % interval)", "speedup", "efficiency", "oversubscribed")
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=" ".join([study["verdict"]["manager"], *study["notes"]]),
        values={"points": [{name: one[name] for name in names} for one in study["points"]]},
    )
