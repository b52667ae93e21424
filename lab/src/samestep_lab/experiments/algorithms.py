"""Measures every all-reduce at several sizes, and reports the fastest at each size."""

from samestep.base.units import bytes_text, seconds_text
from samestep.bench.figures import Request, Row, best_text, fastest
from samestep.bench.measurement import perform
from samestep.ranks.world.protocol import World
from samestep_lab.collectives.algorithms import ALL_REDUCE
from samestep_lab.experiments.experiment import Outcome, Setup, Table

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
SECONDS = 2.0


def on_rank(world: World, request: Request) -> list[Row]:
    """Measure the all-reduces that these ranks can run."""
    return perform(world, request, ALL_REDUCE)


def run(setup: Setup, *, sizes: tuple[int, ...] = SIZES, seconds: float = SECONDS) -> Outcome:
    """Run the experiment."""
    request = Request(collective="all_reduce", sizes=sizes, seconds=seconds)
    measured = setup.ranks(on_rank, setup.workers, request)[0]
    rows = [
        (
            bytes_text(row.bytes),
            row.algorithm,
            seconds_text(row.median_s),
            " - ".join(map(seconds_text, row.spread_s)),
            f"{row.busbw_bytes_per_s / 1e9:.3g}",
        )
        for row in sorted(measured, key=lambda row: (row.bytes, row.median_s))
    ]
    leaders = fastest(measured)
    answers = "; ".join(f"{best_text(names)} ({bytes_text(nbytes)})" for nbytes, names in leaders.items())
    return Outcome(
        tables=[Table(head=("size", "all-reduce", "median", "quartiles", "busbw GB/s"), rows=rows)],
        measured=f"Fastest on {setup.workers} ranks here, by size: {answers}.",
        values={
            "rows": [row.as_dict() for row in measured],
            "fastest": [{"bytes": nbytes, "algorithms": names} for nbytes, names in leaders.items()],
        },
    )
