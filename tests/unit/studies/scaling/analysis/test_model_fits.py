"""Models recover the parameters of synthetic points, or report why they cannot."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.studies.scaling.analysis.model_fits import amdahl, fits, gustafson
from samestep.studies.scaling.analysis.speedup import knee
from samestep.studies.scaling.analysis.study import Point
from support.clocked_runs import timed

COUNTS = (1, 2, 4, 8, 16)


def series(speedup, counts=COUNTS, **more) -> list[Point]:
    return [
        Point(
            workers=n,
            samples_per_second=100 * speedup(n),
            speedup=speedup(n),
            efficiency=speedup(n) / n,
            **more,
        )
        for n in counts
    ]


def by_amdahl(serial: float):
    return lambda n: 1 / (serial + (1 - serial) / n)


def test_amdahl_can_find_nothing_that_more_workers_shorten():
    assert amdahl(series(lambda n: 1 / n)).parameters == {"serial_share": 1}
    assert "96 % of a run" in amdahl(series(by_amdahl(0.9649))).words
    assert "96 % of a step" in amdahl(series(by_amdahl(0.9649), step_s={"forward": 1.0})).words


@given(st.floats(1e-6, 1), st.integers(1, 4))
def test_amdahls_serial_share_is_recovered(serial, smallest):
    counts = [smallest * n for n in (1, 2, 3, 7)]
    made = by_amdahl(serial)

    fit = amdahl(series(lambda n: smallest * made(n / smallest), counts))

    assert fit.parameters["serial_share"] == pytest.approx(serial, rel=1e-6)
    assert fit.deviation == pytest.approx(0, abs=1e-9)
    assert fit.workers == tuple(counts)


@given(st.floats(0, 0.999))
def test_gustafsons_serial_share_is_recovered(serial):
    fit = gustafson(series(lambda n: n - serial * (n - 1)))

    assert fit.parameters["serial_share"] == pytest.approx(serial, abs=1e-9)
    assert fit.deviation == pytest.approx(0, abs=1e-9)


def test_the_slope_is_that_of_least_squares():
    speedups = dict(zip(COUNTS, (1, 1.9, 3.1, 6.5, 8.2), strict=True))
    n = np.array(COUNTS[1:], dtype=float)
    s = np.array([speedups[count] for count in COUNTS[1:]])
    (wanted,), *_ = np.linalg.lstsq((s * (1 - 1 / n))[:, None], 1 - s / n, rcond=None)

    fit = amdahl(series(speedups.__getitem__))

    assert fit.parameters["serial_share"] == pytest.approx(wanted)
    model = 1 / (wanted + (1 - wanted) / n)
    assert fit.deviation == pytest.approx(np.sqrt(np.mean((model / s - 1) ** 2)))


def test_more_than_ideal_has_no_serial_share():
    fit = amdahl(series(lambda n: n**1.1))

    assert (fit.parameters, fit.code) == ({"serial_share": 0}, "fitted")
    assert "even faster" in fit.words


@pytest.mark.parametrize("seconds", [(99.9, 33.3, 11.1), (100, 100 / 3, 100 / 9)])
def test_rounding_of_an_ideal_speedup_is_no_share(seconds):
    speedups = {n: seconds[0] / taken for n, taken in zip((1, 3, 9), seconds, strict=True)}

    fit = amdahl(series(speedups.__getitem__, (1, 3, 9)))

    assert fit.parameters == {"serial_share": 0}
    assert "even faster" not in fit.words
    assert amdahl(series(lambda n: 1 + 1e-15 / n)).parameters == {"serial_share": 1}


def test_too_few_points_determine_no_parameter():
    for fit in (
        amdahl(series(float, [1])),
        gustafson(series(float, [4])),
    ):
        assert (fit.parameters, fit.deviation, fit.code) == ({}, None, "too-few-points")


def test_wide_intervals_determine_no_parameter():
    for fit in (amdahl, gustafson):
        open_ends = [replace(point, speedup_low=0.5, speedup_high=9.0) for point in series(by_amdahl(0.1))]
        assert (fit(open_ends).parameters, fit(open_ends).code) == ({}, "inconclusive")
        assert fit([replace(point, speedup_low=3.0, speedup_high=4.0) for point in open_ends]).parameters


def test_a_model_with_as_many_parameters_as_points_has_no_deviation():
    assert amdahl(series(by_amdahl(0.1), [1, 2])).deviation is None


def test_oversubscribed_points_are_left_out():
    points = series(by_amdahl(0.1), (1, 2, 4))
    points.append(replace(points[-1], workers=8, speedup=0.5, efficiency=0.06, oversubscribed=True))

    (fit,) = fits(points)

    assert fit.workers == (1, 2, 4)
    assert fit.parameters["serial_share"] == pytest.approx(0.1)
    assert knee(points) is None


def test_a_speedup_that_has_no_square_is_fitted():
    (fit,) = timed({1: 1.0, 2: 1e170}).fit

    assert fit.model == "amdahl"


def test_each_mode_has_its_model():
    points = [
        *series(by_amdahl(0.1), variant="a"),
        *series(lambda n: n - 0.2 * (n - 1), mode="weak", variant="a"),
    ]

    assert [(fit.model, fit.mode, fit.variant) for fit in fits(points)] == [
        ("amdahl", "strong", "a"),
        ("gustafson", "weak", "a"),
    ]


@pytest.mark.parametrize("serial", [0.5, 0.2, 0.1, 0.05])
def test_the_knee_after_amdahl(serial):
    counts = range(1, 65)

    at = knee(series(by_amdahl(serial), counts))

    assert at == round((1 - serial) / serial)


def test_there_is_no_knee_if_the_most_workers_are_the_best():
    assert knee(series(by_amdahl(0.01))) is None
    assert knee(series(float, [1])) is None
    assert knee([]) is None
