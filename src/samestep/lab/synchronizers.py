"""Measures a training step with each gradient synchronizer."""

from dataclasses import asdict

from samestep.base.units import seconds_text
from samestep.lab.experiment import Outcome, Setup, Table
from samestep.ranks.world.protocol import World
from samestep.studies.bench.request import ALONE
from samestep.studies.bench.step_times import StepRow, measure
from samestep.studies.bench.synchronizers import NEEDS, WAYS, Problem, ways_here
from samestep.studies.bench.text import step_answer

SECONDS = 20.0


def on_rank(world: World, problem: Problem, seconds: float) -> list[StepRow]:
    """Return the figures of each synchronizer that these ranks can run."""
    names = [name for name in ways_here(world) if name != ALONE]
    return measure(world, problem, names, seconds=seconds)


def noise(found: list[StepRow]) -> str:
    """Return a sentence if a step was faster with communication than without, which only noise explains."""
    above = [row.sync for row in found if row.efficiency > 1]
    return (
        f" No order follows for efficiencies near 100%: above it are {', '.join(above)}, faster than without "
        "communication, which only other load on this machine explains."
        if above
        else ""
    )


def run(setup: Setup, *, problem: Problem | None = None, seconds: float = SECONDS) -> Outcome:
    """Run the experiment."""
    found = setup.ranks(on_rank, setup.workers, problem or Problem(), seconds)[0]
    rows = [
        (
            row.sync,
            seconds_text(row.step_s),
            "-" if row.exposed_sync_s is None else seconds_text(row.exposed_sync_s),
            f"{row.efficiency:.0%}",
        )
        for row in sorted(found, key=lambda row: -row.efficiency)
    ]
    measured = {row.sync for row in found}
    rows += [(name, "-", "-", f"needs {NEEDS[name]}") for name in WAYS if name not in measured]
    return Outcome(
        tables=[Table(head=("synchronizer", "step", "exposed communication", "efficiency"), rows=rows)],
        measured=f"{step_answer(found)}. Each figure is a median over interleaved rounds.{noise(found)}",
        values={row.sync: asdict(row) for row in found},
    )
