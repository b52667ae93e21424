"""Round numbers on axes, and curves made shorter without losing an extreme."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.report.drawing import Scale, label, span, thin, ticks

numbers = st.floats(-1e9, 1e9, allow_nan=False)
any_number = st.one_of(numbers, st.sampled_from([math.nan, math.inf, -math.inf]))


@given(numbers, st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_are_few_and_round_and_within_the_axis(low, width, most):
    high = low + width
    if not high - low > 1e-7 * abs(low):
        return
    found = ticks(low, high, most=most)
    slack = 1e-6 * (high - low)
    assert len(found) <= most
    assert all(low - slack <= tick <= high + slack for tick in found)
    if len(found) > 1:
        step = found[1] - found[0]
        digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(digits - round_one) for round_one in (1, 2, 5, 10)) < 1e-3


@given(st.lists(any_number, max_size=20), st.booleans())
def test_a_span_holds_all_finite_values_and_is_never_a_point(values, zero):
    low, high = span(values, zero=zero)
    assert low < high
    assert all(low <= value <= high for value in values if math.isfinite(value))
    if zero:
        assert low <= 0 <= high


@given(numbers, st.floats(1e-3, 1e6))
def test_a_scale_maps_ends_to_ends(low, width):
    scale = Scale(low, low + width, 10, 200)
    if scale.high > scale.low:
        assert scale(scale.low) == pytest.approx(10)
        assert scale(scale.high) == pytest.approx(200)


@given(st.lists(any_number, max_size=300), st.integers(1, 50))
def test_thinning_keeps_the_extremes_and_the_mean(ys, most):
    bins = thin(range(len(ys)), ys, most=most)
    finite = [y for y in ys if math.isfinite(y)]
    assert len(bins) <= most
    assert [one.x for one in bins] == sorted({one.x for one in bins})
    if finite:
        assert min(one.low for one in bins) == min(finite)
        assert max(one.high for one in bins) == max(finite)
        assert all(one.low - 1e-3 <= one.y <= one.high + 1e-3 for one in bins)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (12_000, "12k"), (2_500_000, "2.5M"), (1e-5, "1.0e-05"), (-3, "-3")],
)
def test_labels_are_short(value, text):
    assert label(value) == text
