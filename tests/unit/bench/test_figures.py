"""Figures are computed from synthetic times."""

import pytest

from samestep.bench.figures import Row, bus_factor, fastest, figures, slowest


def test_the_time_of_a_call_is_that_of_the_slowest_rank():
    assert slowest([[1.0, 5.0, 2.0], [3.0, 4.0, 2.5]]) == [3.0, 5.0, 2.5]


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bandwidth_factors_equal_those_of_nccl_tests(collective, factor):
    assert bus_factor(collective, 4) == factor


def test_bandwidths_are_computed_from_the_median():
    row = figures("all_reduce", "ring", nbytes=4000, ranks=4, times=[2.0, 9.0, 1.0, 2.0])

    assert (row.median_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (2.0, 2000.0, 3000.0)
    assert row.spread_s == (1.75, 3.75)


def test_the_json_of_a_row_has_the_expected_fields():
    row = figures("broadcast", "tree", nbytes=8, ranks=2, times=[1.0])

    assert list(row.as_dict()) == [
        "collective",
        "algorithm",
        "bytes",
        "ranks",
        "median_s",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ]


def timed(name, median_s, *quartiles, nbytes=1024):
    times = {"median_s": median_s, "spread_s": quartiles, "algbw_bytes_per_s": 1.0, "busbw_bytes_per_s": 1.0}
    return Row(collective="all_reduce", algorithm=name, bytes=nbytes, ranks=2, **times)


def test_algorithms_with_overlapping_quartiles_are_all_the_fastest():
    rows = [
        timed("tree", 3.0, 2.9, 3.1),
        timed("ring", 1.1, 0.9, 1.2),
        timed("naive", 1.0, 0.8, 1.1),
        timed("tree", 1.0, 0.9, 1.1, nbytes=4096),
        timed("ring", 2.0, 1.2, 2.1, nbytes=4096),
    ]

    assert fastest(rows) == {1024: ["naive", "ring"], 4096: ["tree"]}
