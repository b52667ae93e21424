"""Measures every all-reduce at several sizes, and reports the fastest at each."""

from samestep.base.units import bytes_text, seconds_text
from samestep.lab.experiment import Outcome, Setup, Table
from samestep.ranks.world.protocol import World
from samestep.studies.bench.cost_fit import crossovers
from samestep.studies.bench.measurement import Report, perform
from samestep.studies.bench.request import Request
from samestep.studies.bench.text import chart, fastest, times_of

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
SECONDS = 2.0


def on_rank(world: World, request: Request) -> Report:
    """Measure the all-reduces that these ranks can run."""
    return perform(world, request)


def run(setup: Setup, *, sizes: tuple[int, ...] = SIZES, seconds: float = SECONDS) -> Outcome:
    """Run the experiment."""
    request = Request(collective="all_reduce", sizes=sizes, seconds=seconds)
    report = setup.ranks(on_rank, setup.workers, request)[0]
    rows = [
        (
            bytes_text(row.bytes),
            row.algorithm,
            seconds_text(row.median_s),
            " - ".join(map(seconds_text, row.spread_s)),
            f"{row.busbw_bytes_per_s / 1e9:.3g}",
        )
        for row in sorted(report.rows, key=lambda row: (row.bytes, row.median_s))
    ]
    times = times_of(report.rows)
    return Outcome(
        tables=[Table(head=("size", "all-reduce", "median", "quartiles", "busbw GB/s"), rows=rows)],
        measured=f"On {setup.workers} ranks here the fastest is: {fastest(times)}.",
        values={
            "rows": [row.as_dict() for row in report.rows],
            "fastest": [{"from_bytes": nbytes, "algorithm": name} for nbytes, name in crossovers(times)],
        },
        charts=[chart(report, request, setup.workers)],
    )
