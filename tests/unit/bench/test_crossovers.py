"""Crossovers are computed from synthetic times."""

from samestep.bench.figures import crossovers
from support.bench_rows import rows_of

FASTER_BY_SIZE = {
    "tree": {4: 1.0, 16: 2.0, 64: 9.0},
    "ring": {4: 3.0, 16: 3.0, 64: 4.0},
    "naive": {4: 1.2, 16: 2.2, 64: 9.0},
}


def test_crossovers_list_the_fastest_algorithm_by_size():
    assert crossovers(rows_of(FASTER_BY_SIZE)) == [(4, ["tree"]), (64, ["ring"])]


def test_algorithms_with_overlapping_times_share_a_range():
    assert crossovers(rows_of(FASTER_BY_SIZE, spread=0.1)) == [(4, ["tree", "naive"]), (64, ["ring"])]
    assert crossovers(rows_of(FASTER_BY_SIZE, spread=0.3)) == [(4, ["tree", "naive"]), (64, ["ring"])]
    assert crossovers(rows_of(FASTER_BY_SIZE, spread=0.9)) == [(4, ["tree", "naive", "ring"])]


def test_a_negligible_difference_is_no_crossover():
    times = {"tree": {4: 1.0, 16: 2.0, 64: 3.0}, "ring": {4: 2.0, 16: 1.95, 64: 2.0}}
    assert crossovers(rows_of(times)) == [(4, ["tree"]), (64, ["ring"])]


def test_an_algorithm_without_a_time_at_a_size_is_not_the_fastest_there():
    found = crossovers(rows_of({"tree": {4: 1.0}, "ring": {4: 2.0, 16: 2.0}}))
    assert found == [(4, ["tree"]), (16, ["ring"])]
