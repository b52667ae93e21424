"""Alpha and beta of communication are recovered from synthetic points, or reported as unknown."""

import math
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.studies.scaling.analysis.model_fits import fit_communication, fits
from samestep.studies.scaling.analysis.points import measured
from samestep.studies.scaling.analysis.study import Point, Study
from samestep.studies.scaling.analysis.verdict import conclude
from support.clocked_runs import clocked

COUNTS = (1, 2, 4, 8, 16)
MB = 1_000_000


def ring(n, alpha, gradient):
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * gradient


def exposed(alpha, gradient, counts=COUNTS, *, size=None, runs=(), nodes=lambda n: 1) -> list[Point]:
    """Return points whose communication is that of a ring; `runs` are its factors in each repeat."""
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
def test_alpha_and_the_time_of_all_gradients_are_recovered(alpha, gradient):
    hypothesis.assume(alpha + gradient > 1e-8)

    fit = fit_communication(exposed(alpha, gradient))

    assert fit.parameters["alpha_s"] == pytest.approx(alpha, abs=1e-9 + 1e-6 * gradient)
    assert fit.parameters["gradient_s"] == pytest.approx(gradient, abs=1e-9 + 1e-6 * alpha)


@given(st.floats(1e-6, 0.01), st.floats(1e-11, 1e-7), st.integers(100, 10**10))
def test_beta_is_per_byte_if_the_bytes_are_known(alpha, beta, size):
    fit = fit_communication(exposed(alpha, beta * size, size=size, runs=(1, 1, 1)))

    found = fit.parameters
    assert found["beta_s_per_byte"] == pytest.approx(beta, abs=1e-12 + 1e-6 * alpha / size, rel=1e-6)
    assert found["beta_s_per_byte_low"] <= found["beta_s_per_byte"] <= found["beta_s_per_byte_high"]
    assert "gradient_s" not in found


@given(st.lists(st.floats(1e-4, 1), min_size=4, max_size=4))
def test_parameters_are_those_of_non_negative_least_squares(seconds):
    counts = np.array(COUNTS[1:], dtype=float)
    t = np.array(seconds)
    columns = np.stack([2 * (counts - 1) / t, 2 * (counts - 1) / counts / t], axis=1)
    candidates = [np.linalg.lstsq(columns, np.ones(4), rcond=None)[0]]
    for kept in (0, 1):  # the other is 0
        one = np.zeros(2)
        one[kept] = np.linalg.lstsq(columns[:, kept : kept + 1], np.ones(4), rcond=None)[0][0]
        candidates.append(one)
    allowed = [pair for pair in candidates if min(pair) >= -1e-15]
    best = min(allowed, key=lambda pair: np.sum((columns @ pair - 1) ** 2))

    points = [
        replace(point, exchange_s=s) for point, s in zip(exposed(1, 1, COUNTS[1:]), seconds, strict=True)
    ]
    found = fit_communication(points).parameters

    assert [found["alpha_s"], found["gradient_s"]] == pytest.approx(list(best), rel=1e-5, abs=1e-9)


def test_the_sentence_has_values_with_units():
    fit = fit_communication(exposed(0.0012, 0.0008 * 25, size=25 * MB, runs=(1, 1, 1)))

    assert fit.code == "fitted"
    for value in ("1.2 ms for each message", "800 us for each MB", "1.25 GB/s to 1.25 GB/s", "0.0 %"):
        assert value in fit.words


def test_single_runs_have_no_interval():
    fit = fit_communication(exposed(0.0012, 0.0008 * 25, size=25 * MB, runs=(1,)))

    assert fit.parameters.keys() == {"alpha_s", "beta_s_per_byte"}
    assert fit.words.count("GB/s") == 1


def test_parameters_with_wide_intervals_are_left_out():
    fit = fit_communication(exposed(0.0012, 0.02, size=25 * MB, runs=(0.4, 1, 2.5)))

    assert (fit.parameters, fit.code) == ({}, "inconclusive")


def test_one_parameter_can_be_conclusive_alone():
    points = [  # alpha is the same in all runs, the time of the gradients is not
        replace(point, exchange_runs=tuple(ring(point.workers, 0.01, g) for g in (0.001, 0.02, 0.2)))
        for point in exposed(0.01, 0.02, size=MB)
    ]

    fit = fit_communication(points)

    assert fit.parameters.keys() == {"alpha_s", "alpha_s_low", "alpha_s_high"}
    assert fit.code == "fitted"
    assert "10 ms for each message" in fit.words
    assert "inconclusive" in fit.words


def test_a_run_without_exposed_communication_makes_all_parameters_inconclusive():
    assert fit_communication(exposed(0.01, 0.02, runs=(1, 0, 1))).parameters == {}


def test_no_speed_is_reported_if_the_model_does_not_describe_the_points():
    points = [replace(point, exchange_s=0.1 / point.workers) for point in exposed(1, 1, size=25 * MB)]

    fit = fit_communication(points)

    assert fit.deviation > 0.1
    assert "B/s" not in fit.words


def test_bytes_that_differ_between_points_are_not_used():
    points = [replace(point, exchange_bytes=point.workers * MB) for point in exposed(0.001, 0.02)]

    assert fit_communication(points).parameters.keys() == {"alpha_s", "gradient_s"}


def test_alpha_and_beta_are_not_negative():
    falling = [replace(point, exchange_s=0.1 / point.workers) for point in exposed(1, 1, size=MB)]
    rising = [replace(point, exchange_s=0.1 * point.workers**2) for point in exposed(1, 1, size=MB)]

    assert fit_communication(falling).parameters["alpha_s"] == 0
    assert fit_communication(rising).parameters["beta_s_per_byte"] == 0
    assert fit_communication(rising).deviation == pytest.approx(0.44, abs=0.005)


def test_one_point_with_communication_is_reported_without_a_model():
    fit = fit_communication(exposed(0.01, 0.1, [1, 2], size=MB))

    assert (fit.parameters, fit.deviation, fit.code) == ({}, None, "too-few-points")
    assert "2 workers wait 120 ms of a step for 1 MB of gradients" in fit.words


def test_two_points_with_communication_have_no_deviation():
    assert fit_communication(exposed(0.01, 0.1, [1, 2, 4])).deviation is None


def test_points_on_one_node_and_on_several_are_not_mixed():
    mixed = exposed(0.01, 0.1, (1, 2, 4, 8), nodes=lambda n: max(1, n // 4))

    assert fit_communication(mixed).parameters == {}
    assert fit_communication(mixed[:3]).workers == (2, 4)


def test_communication_that_is_not_exposed_has_no_cost():
    points = [replace(point, exchange_s=0.0) for point in exposed(1, 1)]

    assert fit_communication(points).code == "nothing-exposed"


def test_beta_is_fitted_to_clocked_runs():
    runs = [
        clocked(n, comm=ring(n, 0.0005, 0.010) if n > 1 else 0.0, sent=5 * MB if n > 1 else None)
        for n in (1, 2, 4)
        for _ in range(3)
    ]

    study = conclude(Study(target="digits", points=measured(runs)))

    (fit,) = (fit for fit in fits(study.points) if fit.model == "exchange")
    assert [point.exchange_bytes for point in study.points] == [None, 5 * MB, 5 * MB]
    assert all(math.isclose(s, study.points[1].exchange_s) for s in study.points[1].exchange_runs)
    assert fit.parameters["beta_s_per_byte"] == pytest.approx(2e-9)


def test_bytes_that_one_worker_did_not_record_are_unknown():
    run = clocked(2, comm=0.01, sent=5 * MB)
    for line in run.ranks[1].steps:
        line["exchange_bytes"] = None

    (point,) = measured([run])

    assert point.exchange_bytes is None
