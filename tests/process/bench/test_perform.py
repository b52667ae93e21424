"""Collectives are measured on real processes."""

from samestep.bench.figures import COLLECTIVES as NAMES
from samestep.bench.figures import Request
from samestep.bench.measurement import COLLECTIVES, perform


def of_all(world):
    """Measure collectives at tiny sizes; return their rows."""
    return [
        (name, perform(world, Request(collective=name, sizes=(5, 6, 4096), seconds=0.01))) for name in NAMES
    ]


def test_every_collective_is_timed_with_all_its_algorithms(processes):
    for name, rows in processes.run(of_all, 2)[0]:
        assert [(row.algorithm, row.bytes) for row in rows] == [
            (algorithm, nbytes) for nbytes in (8, 4096) for algorithm in COLLECTIVES[name].algorithms
        ]
        assert all(row.median_s > 0 for row in rows)
