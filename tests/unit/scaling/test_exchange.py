"""Alpha and beta of the exchange are what made-up points were made of, or are said to be unknown."""

import math
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.scaling.conclude import conclude
from samestep.scaling.exchange import exchange
from samestep.scaling.fit import fits
from samestep.scaling.measured import measured
from samestep.scaling.study import Point, Study
from support.clocked_runs import clocked

COUNTS = (1, 2, 4, 8, 16)
MB = 1_000_000


def ring(n, alpha, gradient):
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * gradient


def exposed(alpha, gradient, counts=COUNTS, *, size=None, runs=(), nodes=lambda n: 1) -> list[Point]:
    """Return points whose exchange is a ring's; `runs` are factors of that in each repeat."""
    return [
        Point(
            workers=n,
            nodes=nodes(n),
            samples_per_second=100 * n,
            speedup=n,
            efficiency=1.0,
            exchange_s=ring(n, alpha, gradient),
            exchange_bytes=size if n > 1 else None,
            exchange_runs=tuple(factor * ring(n, alpha, gradient) for factor in runs),
        )
        for n in counts
    ]


@given(st.floats(0, 0.01), st.floats(0, 1))
def test_alpha_and_the_time_of_all_gradients_come_back(alpha, gradient):
    hypothesis.assume(alpha + gradient > 1e-8)

    fit = exchange(exposed(alpha, gradient))

    assert fit.parameters["alpha_s"] == pytest.approx(alpha, abs=1e-9 + 1e-6 * gradient)
    assert fit.parameters["gradient_s"] == pytest.approx(gradient, abs=1e-9 + 1e-6 * alpha)


@given(st.floats(1e-6, 0.01), st.floats(1e-11, 1e-7), st.integers(100, 10**10))
def test_where_bytes_are_known_beta_is_of_a_byte(alpha, beta, size):
    fit = exchange(exposed(alpha, beta * size, size=size, runs=(1, 1, 1)))

    told = fit.parameters
    assert told["beta_s_per_byte"] == pytest.approx(beta, abs=1e-12 + 1e-6 * alpha / size, rel=1e-6)
    assert told["beta_s_per_byte_low"] <= told["beta_s_per_byte"] <= told["beta_s_per_byte_high"]
    assert "gradient_s" not in told


@given(st.lists(st.floats(1e-4, 1), min_size=4, max_size=4))
def test_the_figures_are_those_of_least_squares_none_below_nothing(seconds):
    counts = np.array(COUNTS[1:], dtype=float)
    t = np.array(seconds)
    columns = np.stack([2 * (counts - 1) / t, 2 * (counts - 1) / counts / t], axis=1)
    candidates = [np.linalg.lstsq(columns, np.ones(4), rcond=None)[0]]
    for kept in (0, 1):  # the other is nothing
        one = np.zeros(2)
        one[kept] = np.linalg.lstsq(columns[:, kept : kept + 1], np.ones(4), rcond=None)[0][0]
        candidates.append(one)
    allowed = [pair for pair in candidates if min(pair) >= -1e-15]
    best = min(allowed, key=lambda pair: np.sum((columns @ pair - 1) ** 2))

    points = [
        replace(point, exchange_s=s) for point, s in zip(exposed(1, 1, COUNTS[1:]), seconds, strict=True)
    ]
    told = exchange(points).parameters

    assert [told["alpha_s"], told["gradient_s"]] == pytest.approx(list(best), rel=1e-5, abs=1e-9)


def test_the_words_have_units():
    fit = exchange(exposed(0.0012, 0.0008 * 25, size=25 * MB, runs=(1, 1, 1)))

    assert fit.words == (
        "Exposed exchange, as of a ring: 1.2 ms for each message and 800 us for each MB of gradients "
        "(about 1.25 GB/s as a step sees it, 1.25 GB/s to 1.25 GB/s). "
        "This is 0.0 % off the points on average."
    )


def test_single_runs_have_no_interval():
    fit = exchange(exposed(0.0012, 0.0008 * 25, size=25 * MB, runs=(1,)))

    assert fit.parameters.keys() == {"alpha_s", "beta_s_per_byte"}
    assert "(about 1.25 GB/s as a step sees it)" in fit.words


def test_what_the_repeats_leave_open_is_no_figure():
    fit = exchange(exposed(0.0012, 0.02, size=25 * MB, runs=(0.4, 1, 2.5)))

    assert fit.parameters == {}
    assert fit.words.startswith(
        "Exposed exchange, as of a ring: neither alpha nor beta can be told: their runs"
    )


def test_one_of_the_two_may_be_told_alone():
    points = [  # a message takes as long in all runs, and what is carried does not
        replace(point, exchange_runs=tuple(ring(point.workers, 0.01, g) for g in (0.001, 0.02, 0.2)))
        for point in exposed(0.01, 0.02, size=MB)
    ]

    fit = exchange(points)

    assert fit.parameters.keys() == {"alpha_s", "alpha_s_low", "alpha_s_high"}
    assert "10 ms for each message and a time for each byte that cannot be told" in fit.words


def test_a_run_without_a_wait_leaves_all_open():
    assert exchange(exposed(0.01, 0.02, runs=(1, 0, 1))).parameters == {}


def test_a_speed_is_not_told_where_the_model_does_not_describe_the_points():
    points = [replace(point, exchange_s=0.1 / point.workers) for point in exposed(1, 1, size=25 * MB)]

    fit = exchange(points)

    assert "does not describe them" in fit.words
    assert "B/s" not in fit.words


def test_other_gradients_at_other_numbers_of_workers_are_no_bytes():
    points = [replace(point, exchange_bytes=point.workers * MB) for point in exposed(0.001, 0.02)]

    assert exchange(points).parameters.keys() == {"alpha_s", "gradient_s"}


def test_neither_part_of_an_exchange_is_below_nothing():
    falling = [replace(point, exchange_s=0.1 / point.workers) for point in exposed(1, 1, size=MB)]
    rising = [replace(point, exchange_s=0.1 * point.workers**2) for point in exposed(1, 1, size=MB)]

    assert exchange(falling).parameters["alpha_s"] == 0
    assert "nothing that shows for each message" in exchange(falling).words
    assert exchange(rising).parameters["beta_s_per_byte"] == 0
    assert "nothing that shows for each MB of gradients. This is 44 % off" in exchange(rising).words


def test_one_exchange_is_a_fact_and_no_model():
    fit = exchange(exposed(0.01, 0.1, [1, 2], size=MB))

    assert (fit.parameters, fit.deviation) == ({}, None)
    assert fit.words == (
        "Alpha and beta of the exchange: not determined, for want of points (it takes two numbers of "
        "workers above 1 that wait for it). 2 workers wait 120 ms of a step for 1 MB of gradients."
    )


def test_two_exchanges_leave_nothing_to_test_them():
    assert exchange(exposed(0.01, 0.1, [1, 2, 4])).deviation is None


def test_links_within_a_machine_and_between_are_not_one():
    mixed = exposed(0.01, 0.1, (1, 2, 4, 8), nodes=lambda n: max(1, n // 4))

    assert exchange(mixed).parameters == {}
    assert exchange(mixed[:3]).workers == (2, 4)


def test_an_exchange_that_nobody_waits_for_has_no_cost():
    points = [replace(point, exchange_s=0.0) for point in exposed(1, 1)]

    assert exchange(points).words == "Exchange: none was waited for."


def test_from_clocked_runs_to_a_figure():
    runs = [
        clocked(n, exchange=ring(n, 0.0005, 0.010) if n > 1 else 0.0, sent=5 * MB if n > 1 else None)
        for n in (1, 2, 4)
        for _ in range(3)
    ]

    study = conclude(Study(target="digits", points=measured(runs)))

    (fit,) = (fit for fit in fits(study.points) if fit.model == "exchange")
    assert [point.exchange_bytes for point in study.points] == [None, 5 * MB, 5 * MB]
    assert all(math.isclose(s, study.points[1].exchange_s) for s in study.points[1].exchange_runs)
    assert fit.parameters["beta_s_per_byte"] == pytest.approx(2e-9)


def test_a_worker_that_does_not_say_leaves_the_bytes_unknown():
    told = clocked(2, exchange=0.01, sent=5 * MB)
    for line in told.ranks[1].steps:
        line["exchange_bytes"] = None

    (point,) = measured([told])

    assert point.exchange_bytes is None
