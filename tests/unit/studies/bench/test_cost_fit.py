"""Fits and crossovers are computed from synthetic times."""

import pytest

from samestep.studies.bench.figures import crossovers, fit
from support.bench_rows import rows_of

SIZES = [4 * 4**power for power in range(14)]


def test_alpha_and_beta_are_recovered():
    line = fit({nbytes: 20e-6 + 1e-9 * nbytes for nbytes in SIZES})

    assert line.alpha == pytest.approx(20e-6)
    assert line.beta == pytest.approx(1e-9)


def test_outliers_do_not_change_the_fit():
    times = {nbytes: 20e-6 + 1e-9 * nbytes for nbytes in SIZES}
    times[SIZES[2]] *= 50
    times[SIZES[-1]] *= 3

    assert fit(times).alpha == pytest.approx(20e-6)
    assert fit(times).beta == pytest.approx(1e-9)


def test_alpha_and_beta_are_not_negative():
    line = fit({4: 5e-6, 16: 4e-6, 64: 3e-6})
    assert line.beta == 0
    assert fit({1 << 20: 1e-3, 4 << 20: 8e-3}).alpha == 0


def test_a_fit_to_one_size_returns_its_time():
    assert fit({100: 2.0})(100) == 2.0


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
