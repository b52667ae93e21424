"""Intervals contain the true value in 95 % of cases."""

import math
import random
from statistics import fmean

import pytest

from samestep.scaling.analysis.confidence import of_ratio, of_repeats


def test_one_repeat_has_no_interval():
    assert of_repeats([100.0]) is None


@pytest.mark.parametrize(("repeats", "t"), [(2, 12.706205), (3, 4.302653), (11, 2.228139), (41, 2.021075)])
def test_the_interval_is_students(repeats, t):
    rates = [math.exp(0.01 * number) for number in range(repeats)]
    logs = [math.log(rate) for rate in rates]
    mean = fmean(logs)
    error = math.sqrt(sum((one - mean) ** 2 for one in logs) / (repeats - 1) / repeats)

    low, high = of_repeats(rates)

    assert math.log(high) == pytest.approx(mean + t * error, rel=1e-3, abs=1e-5)
    assert math.log(low) == pytest.approx(mean - t * error, rel=1e-3, abs=1e-5)


def test_the_interval_contains_the_median():
    rates = [100.0] * 9 + [1000.0] * 2 + [1.0]

    low, high = of_repeats(rates)

    assert low <= 100 <= high


def drawn(draw: random.Random, rate: float, repeats: int) -> list[float]:
    return [rate * math.exp(draw.gauss(0, 0.03)) for _ in range(repeats)]


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_the_interval_contains_the_true_value_in_95_percent_of_cases(repeats):
    draw = random.Random(repeats)
    found = [of_repeats(drawn(draw, 100, repeats)) for _ in range(2000)]

    assert 0.935 < fmean(low <= 100 <= high for low, high in found) < 0.965


def test_the_interval_of_a_ratio_contains_the_true_value_too():
    draw = random.Random(7)
    held = []
    for _ in range(2000):
        one, other = drawn(draw, 300, 4), drawn(draw, 100, 4)
        typical = [math.exp(fmean(map(math.log, rates))) for rates in (one, other)]
        low, high = of_ratio(*typical, of_repeats(one), of_repeats(other))
        held.append(low <= 3 <= high)

    assert 0.935 < fmean(held) < 0.99  # it is conservative with so few repeats


def test_a_ratio_with_an_unknown_interval_has_none():
    assert of_ratio(2.0, 1.0, None, (0.9, 1.1)) is None
    assert of_ratio(2.0, 1.0, (1.9, 2.1), None) is None


def test_a_ratio_is_between_the_quotients_of_the_ends():
    low, high = of_ratio(2.0, 1.0, (1.9, 2.2), (0.9, 1.05))

    assert 1.9 / 1.05 < low < 1.9 < 2.2 < high < 2.2 / 0.9
