"""Measures the same training under each launcher, by `samestep scale --compare`."""

import shutil

from samestep.base import env
from samestep.base.machine.description import cpu_share
from samestep.base.units import counted
from samestep_lab.experiments.experiment import Outcome, Setup, Table
from samestep_lab.experiments.strong_scaling import interval_of, study_of

STEPS, REPEATS = 30, 3


def launchers_here() -> list[str]:
    """Return the launchers that can start workers here: srun needs a Slurm allocation."""
    has_allocation = bool(env.snapshot().get("SLURM_JOB_ID")) and shutil.which("srun") is not None
    return ["samestep", "torchrun", *(["srun"] if has_allocation else [])]


def run(setup: Setup, *, steps: int = STEPS, repeats: int = REPEATS) -> Outcome:
    """Run the experiment."""
    names = launchers_here()
    compared = f"launcher={','.join(names)}"
    study = study_of(setup, "-n", str(setup.workers), "--compare", compared, steps=steps, repeats=repeats)
    points = {point["variant"].removeprefix("launcher="): point for point in study["points"]}
    rows = [(name, interval_of(point), str(point["threads"] or "-")) for name, point in points.items()]
    is_oversubscribed = any(point["oversubscribed"] for point in points.values())
    fastest = max(points, key=lambda name: float(points[name]["samples_per_second"]))
    answer = [
        _too_many(setup.workers) if is_oversubscribed else f"{fastest} has the highest rate.",
        *(note["text"] for note in study["notes"]),
    ]
    left_out = "" if "srun" in names else " srun is left out, since this is no Slurm allocation."
    return Outcome(
        tables=[Table(head=("launcher", "samples/s (95 % interval)", "threads of a worker"), rows=rows)],
        measured=" ".join(answer) + left_out,
        values={name: {"runs": point["runs"], "threads": point["threads"]} for name, point in points.items()},
    )


def _too_many(workers: int) -> str:
    cores = cpu_share().cores
    return (
        f"No conclusion: {workers} workers have more threads than the {counted(cores, 'core')} of this "
        f"machine, so that times depend on which of them run; give -n {cores}."
    )
