"""Bars, points and time lines have coordinates in proportion to their values."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.report.charts import Bar, BarChart, LineChart, PointChart, Span, TimeLine
from samestep.report.drawing import FLOOR, TOP, DataPoint, Scale
from support.html_page import HtmlPage

positive = st.floats(1e-3, 1e6)


def rectangles(text, names):
    """Return (x, y, width, height) of the rectangles of a class, in order."""
    found = re.findall(
        rf'<rect class="{names}" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', text
    )
    return [tuple(map(float, one)) for one in found]


def bars(*made, **more):
    groups = {str(number): [bar] for number, bar in enumerate(made)}
    kinds = [("c0", "one"), ("c1", "two")]
    return BarChart(title="t", x="workers", y="s", kinds=kinds, groups=groups, **more).render()


def points(*values, names=("measured",), **more):
    lines = {name: [DataPoint(x, y, y, y) for x, y in values] for name in names}
    return PointChart(title="t", y="times", lines=lines, ideal=float, **more).render()


def test_bars_are_as_high_as_their_values_and_the_gap_reaches_the_ideal():
    drawn = bars(Bar(name="", parts={0: 2.0}), Bar(name="", parts={0: 3.0}, ideal=4.0))
    (_, _, _, two), (_, top, _, three) = rectangles(drawn, "part c0")
    ((_, gap_top, _, gap),) = rectangles(drawn, "gap")
    assert three == pytest.approx(1.5 * two, abs=0.2)
    assert gap == pytest.approx(0.5 * two, abs=0.2)
    assert gap_top + gap == pytest.approx(top, abs=0.2)


def test_parts_are_stacked_and_show_their_share():
    drawn = bars(Bar(name="", parts={0: 3.0, 1: 1.0}), shares=True)
    # The first of each is in the legend.
    _, (_, low_top, _, low) = rectangles(drawn, "part c0")
    _, (_, high_top, _, high) = rectangles(drawn, "part c1")
    assert low_top + low == pytest.approx(FLOOR, abs=0.2)
    assert high_top + high == pytest.approx(low_top, abs=0.2)
    assert low == pytest.approx(3 * high, abs=0.3)
    assert {"75 %", "25 %"} <= set(HtmlPage(drawn).texts)


def test_parts_differ_in_pattern_too():
    drawn = bars(Bar(name="", parts={0: 3.0, 1: 1.0}))
    assert 'fill="url(#hatch1)"' in drawn
    assert 'fill="url(#hatch0)"' not in drawn


def test_a_bar_that_is_better_than_ideal_has_no_gap():
    assert "gap" not in bars(Bar(name="", parts={0: 5.0}, ideal=4.0))


def test_a_point_on_the_ideal_line_is_drawn_on_it():
    drawn = points((1, 1), (2, 1.5), (4, 4))
    ideal = re.search(r'class="ideal" d="M(\S+)L(\S+)L(\S+)"', drawn).groups()
    line = re.search(r'class="line c0 dash0" d="M(\S+)L(\S+)L(\S+)"', drawn).groups()
    assert ideal[0] == line[0]
    assert ideal[2] == line[2]
    assert float(line[1].split(",")[1]) > float(ideal[1].split(",")[1])  # further down: less


def test_the_ideal_line_is_straight_where_both_axes_count_doublings():
    drawn = points(*((n, n) for n in (1, 2, 8, 64)), base=2)
    places = [
        tuple(map(float, one.split(",")))
        for one in re.search(r'class="ideal" d="M([^"]+)"', drawn)[1].split("L")
    ]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(places)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=0.01)


def test_series_differ_in_shape_and_in_the_line_between():
    drawn = points((1, 1), (2, 2), names=("strong", "weak", "other", "more"))
    shapes = {re.sub(r"[\d.,-]+", "", path) for path in re.findall(r'class="point c\d" d="([^"]+)"', drawn)}
    assert len(shapes) == 4
    assert {f"dash{number}" for number in range(4)} == set(re.findall(r"dash\d", drawn))


def curves(*lines):
    """Return the classes of the drawn lines, and the entries of the legend; a line is a list of its y."""
    named = {str(k): [DataPoint(x, y, y, y) for x, y in enumerate(line)] for k, line in enumerate(lines)}
    drawn = LineChart(title="t", x="steps", y="y", lines=named).render()
    return re.findall(r'class="line (c\d dash\d)"', drawn), re.findall(r"</svg>([^<]*)</li>", drawn)


def test_equal_lines_have_all_patterns_and_more_of_them_are_one():
    same, other = [1.0, 0.5], [1.0, 0.0]
    for count in (2, 3, 4):  # the first lies below the others
        drawn, legend = curves(other, *[same] * count)
        assert drawn[1:] == [f"c{k + 1} dash{k}" for k in range(count)]
        assert len(legend) == count + 1
    drawn, legend = curves(same, other, *[same] * 4)
    assert drawn == ["c0 dash0", "c1 dash1"]
    assert legend == ["0, 2, 3, 4, 5: equal", "1"]
    drawn, legend = curves(*[same] * 9)
    assert (drawn, len(legend)) == (["c0 dash0"], 1)


def test_lines_are_equal_if_no_pixel_is_between_them():
    assert len(curves(*([1.0, 0.5 + k / 10_000] for k in range(5)))[0]) == 1
    assert len(curves(*([1.0, 0.5 + k / 20] for k in range(5)))[0]) == 5
    assert len(curves(*[[1.0, 0.5]] * 4, [1.0, 0.5, 0.5])[0]) == 5  # of other lengths


def test_an_interval_is_drawn_if_it_is_visible():
    wide, none = DataPoint(1, 2.0, 1.0, 3.0), DataPoint(2, 2.0, 2.0, 2.0)
    chart = PointChart(title="t", y="y", lines={"s": [wide, none]}, ideal=float)
    assert chart.render().count('class="whisker"') == 1


def test_a_very_wide_interval_is_clipped_and_does_not_flatten_the_rest():
    known, unknown = DataPoint(1, 1.0, 0.9, 1.1), DataPoint(2, 2.0, 0.01, 5e4)
    drawn = PointChart(title="t", y="y", lines={"s": [known, unknown]}, ideal=float).render()
    ticks = [float(tick) for tick in re.findall(r'class="tick y"[^>]*>([^<]+)<', drawn)]
    assert max(ticks) < 3
    places = [
        float(one)
        for one in re.findall(r"V([\d.]+)", "".join(re.findall(r'class="whisker" d="([^"]+)"', drawn)))
    ]
    assert min(places) == TOP
    (bar,) = rectangles(bars(Bar(name="", parts={0: 2.0}, low=0.01, high=5e4)), "part c0")
    assert bar[3] > 100


@given(st.lists(positive, min_size=2, max_size=8), st.booleans())
def test_an_axis_keeps_the_order_and_all_values_within(values, is_log):
    axis = Scale.over(values, 0.0, 100.0, base=2 if is_log else 0)
    places = [axis(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)


def test_a_time_line_has_a_row_for_each_rank_in_proportion():
    rows = {"rank 0": [Span(0, 0.0, 30.0), Span(1, 30.0, 40.0)], "rank 1": [Span(0, 0.0, 40.0)]}
    drawn = TimeLine(title="t", kinds=[("c0", "forward"), ("c1", "waiting")], rows=rows).render()
    (first, second), ((left, _, width, _),) = (
        rectangles(drawn, "part c0")[1:],
        rectangles(drawn, "part c1")[1:],
    )
    assert first[2] == pytest.approx(0.75 * second[2], abs=0.2)
    assert second[1] > first[1]
    assert left == pytest.approx(first[0] + first[2], abs=0.2)
    assert width == pytest.approx(0.25 * second[2], abs=0.2)
    assert "rank 1: forward 40 ms" in HtmlPage(drawn).labels[0]


def test_a_time_line_of_slow_steps_is_in_seconds():
    drawn = TimeLine(title="t", kinds=[("c0", "forward")], rows={"rank 0": [Span(0, 0.0, 2345.0)]}).render()
    assert "2.35e+03" not in drawn


@pytest.mark.parametrize("values", [(95.0,), (100.0,), (99.0, 100.0)])
def test_an_axis_ends_at_the_largest_value_there_can_be(values):
    lines = {"": [DataPoint(float(k), value, value, value) for k, value in enumerate(values)]}
    chart = LineChart(title="accuracy", x="steps", y="%", lines=lines, most=100)

    shown = [float(text) for text in re.findall(r"<text[^>]*>([\d.]+)</text>", chart.render())]

    assert max(shown) <= 100
