"""Measures a training step with each gradient synchronizer."""

from dataclasses import asdict

from samestep.bench.figures import ALONE, STEP_HEAD, fastest_synchronizer, step_cells
from samestep.bench.step_times import NEEDS, WAYS, Problem, StepRow, measure, ways_here
from samestep.ranks.world.protocol import World
from samestep_lab.experiments.experiment import Outcome, Setup, Table

SECONDS = 20.0


def on_rank(world: World, problem: Problem, seconds: float) -> list[StepRow]:
    """Return the figures of each synchronizer that these ranks can run."""
    names = [name for name in ways_here(world) if name != ALONE]
    return measure(world, problem, names, seconds=seconds)


def noise(rows: list[StepRow]) -> str:
    """Return sentences on steps that are not slower with communication than without."""
    among = [row for row in rows if row.sync != ALONE]
    faster = [row.sync for row in among if row.efficiency_quartiles[0] > 1]
    equal = [row.sync for row in among if row.sync not in faster and row.efficiency_quartiles[1] >= 1]
    sentences = ""
    if equal:
        sentences += f" No difference from steps without communication is measured for {', '.join(equal)}."
    if faster:
        sentences += (
            f" Faster than without communication: {', '.join(faster)}. Only other load on this machine "
            "explains that; run it again without other programs."
        )
    return sentences


def run(setup: Setup, *, problem: Problem | None = None, seconds: float = SECONDS) -> Outcome:
    """Run the experiment."""
    rows = setup.ranks(on_rank, setup.workers, problem or Problem(), seconds)[0]
    measured = {row.sync for row in rows}
    missing = [f" {name} is not measured: it needs {NEEDS[name]}." for name in WAYS if name not in measured]
    return Outcome(
        tables=[Table(head=STEP_HEAD, rows=step_cells(rows))],
        measured=(
            f"Fastest: {fastest_synchronizer(rows)}. Figures are medians over interleaved rounds."
            f"{noise(rows)}{''.join(missing)}"
        ),
        values={row.sync: asdict(row) for row in rows},
    )
