"""The figures of a synchronizer are computed from the times of its blocks, and of those without any."""

from samestep.bench.step_times import ALONE, Problem, _row
from samestep.ranks.world.protocol import SoloWorld


def test_efficiency_is_the_time_without_communication_divided_by_that_with_it():
    times = {ALONE: [1.0, 2.0, 1.5], "flat": [2.0, 2.5, 3.0]}
    row = _row(SoloWorld(), Problem(), "flat", times, [0.5, None, 0.25])

    assert (row.step_s, row.efficiency, row.efficiency_quartiles) == (2.5, 0.5, (0.5, 0.65))
    assert row.exposed_sync_s == 0.375
