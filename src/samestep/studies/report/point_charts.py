"""Draws charts of measured points with intervals and an ideal line, with shapes besides colors."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from samestep.studies.report.axes import (
    COLORS,
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    figure,
    legend,
    x_axis,
    y_axis,
)
from samestep.studies.report.scales import Scale, label, span, ticks

_WIDE = 8
"""Ratio of the greatest to the least value above which an axis is logarithmic."""
ROOM = 1.15
"""Largest ratio of an interval's end to all values; beyond it the interval is clipped."""
_APART = 22
"""Least distance of two numbers on the x axis."""
_SHAPES = (
    "M{x:.1f},{y:.1f}m-{r},0a{r},{r} 0 1,0 {d},0a{r},{r} 0 1,0 -{d},0Z",  # a circle
    "M{x:.1f},{y:.1f}m-{r},-{r}h{d}v{d}h-{d}Z",  # a square
    "M{x:.1f},{y:.1f}m0,-{r}l{r},{d}h-{d}Z",  # a triangle
    "M{x:.1f},{y:.1f}m0,-{r}l{r},{r}l-{r},{r}l-{r},-{r}Z",  # a diamond
)


@dataclass(frozen=True, slots=True)
class DataPoint:
    """A measured value with its confidence interval."""

    x: float
    y: float
    low: float
    high: float
    is_hollow: bool = False
    """Whether the point is drawn hollow."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one kind."""

    name: str
    points: Sequence[DataPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChart:
    """A chart of points over numbers of workers, with their intervals."""

    title: str
    y: str
    """Name of the y axis, with its unit."""
    series: Sequence[Series]
    """At least one series with a point."""
    ideal: Callable[[float], float]
    """Returns the ideal value at an x."""
    limit: tuple[float, str] | None = None
    """Required level and its name."""
    by_doublings: bool = False
    """Whether the y axis is logarithmic if the x axis is; otherwise it begins at 0."""
    tick: Callable[[float], str] = label
    """Formats a number on the y axis."""
    text: Callable[[float], str] = label
    """Formats a value."""
    note: str = ""
    """Text below the chart."""

    def render(self) -> str:
        """Return the chart as a figure element."""
        xs = sorted({point.x for series in self.series for point in series.points})
        x = Axis.over(xs, LEFT + 24, WIDTH - RIGHT - 40)
        y = self._y(xs, is_log=self.by_doublings and x.is_log)
        parts = [
            y_axis(y, y.round_numbers(), self.y, self.tick),
            x_axis(x, _apart(xs, x), "workers"),
            self._ideal(xs, x, y),
            self._limit(y),
            *(self._drawn(number, one.points, x, y) for number, one in enumerate(self.series)),
        ]
        entries = [(marker(number, 5, 5, r=4), one.name) for number, one in enumerate(self.series)]
        return figure(self.title, parts, words=self._words(), legend=legend(entries), note=self.note)

    def _y(self, xs: Sequence[float], *, is_log: bool) -> "Axis":
        points = [point for one in self.series for point in one.points]
        values = [point.y for point in points]
        values += [self.ideal(x) for x in xs] + ([self.limit[0]] if self.limit else [])
        least, most = min(values) / ROOM, max(values) * ROOM
        values += [max(point.low, least) for point in points] + [min(point.high, most) for point in points]
        return Axis.over(values, FLOOR - (14 if is_log else 0), TOP, is_log=is_log, zero=not is_log)

    def _ideal(self, xs: Sequence[float], x: "Axis", y: "Axis") -> str:
        line = "L".join(f"{x(one):.1f},{y(self.ideal(one)):.1f}" for one in xs)
        at = f'x="{x(xs[-1]) + 6:.1f}" y="{y(self.ideal(xs[-1])) + 4:.1f}"'
        return f'<path class="ideal" d="M{line}"/><text class="marked" {at}>ideal</text>'

    def _limit(self, y: "Axis") -> str:
        if self.limit is None:
            return ""
        value, name = self.limit
        return (
            f'<path class="limit" d="M{LEFT},{y(value):.1f}H{WIDTH - RIGHT}"/>'
            f'<text class="marked limited" x="{LEFT + 4}" y="{y(value) + 12:.1f}">{escape(name)}</text>'
        )

    def _drawn(self, number: int, points: Sequence[DataPoint], x: "Axis", y: "Axis") -> str:
        color = f"c{number % COLORS}"
        ordered = sorted(points, key=lambda point: point.x)
        line = "L".join(f"{x(point.x):.1f},{y(point.y):.1f}" for point in ordered)
        shapes = [f'<path class="line {color} dash{number % len(_SHAPES)}" d="M{line}"/>']
        for point in ordered:
            shapes.append(whisker(x(point.x), y(point.low), y(point.high)))
            shapes.append(marker(number, x(point.x), y(point.y), is_hollow=point.is_hollow))
            if len(self.series) == 1:
                # Below the point, clear of the ideal line; above it if the axis is too near.
                down = y(point.y) + 20 if y(point.y) + 24 < FLOOR else y(point.y) - 10
                at = f'x="{x(point.x) + 4:.1f}" y="{down:.1f}"'
                shapes.append(f'<text class="value" {at}>{escape(self.text(point.y))}</text>')
        return "".join(shapes)

    def _words(self) -> str:
        """Return a description of the chart for screen readers."""
        return "; ".join(
            f"{self.title}{', ' + one.name if len(self.series) > 1 else ''}: "
            + ", ".join(f"{self.text(point.y)} at {label(point.x)} workers" for point in one.points)
            for one in self.series
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps positive values to coordinates, linearly or logarithmically."""

    scale: Scale
    is_log: bool

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        start: float,
        stop: float,
        *,
        is_log: bool | None = None,
        zero: bool = False,
    ) -> "Axis":
        """Return an axis that holds `values`.

        Args:
            values: positive values.
            start: coordinate of the least value.
            stop: coordinate of the greatest value.
            is_log: whether the axis is logarithmic; None decides by the range of the values.
            zero: whether the axis begins at 0.
        """
        if is_log is None:
            is_log = max(values) > _WIDE * min(values) > 0
        known = [math.log2(value) for value in values] if is_log else values
        return cls(Scale(*span(known, zero=zero), start, stop), is_log)

    def __call__(self, value: float) -> float:
        """Return the coordinate of `value`."""
        return self.scale(math.log2(value) if self.is_log else value)

    def round_numbers(self) -> list[float]:
        """Return round numbers on the axis."""
        low, high = self.scale.low, self.scale.high
        if not self.is_log:
            return ticks(low, high)
        every = max(1, round((high - low) / 6))
        return [2.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every)]


def marker(number: int, x: float, y: float, *, r: float = 4.5, is_hollow: bool = False) -> str:
    """Return the marker of a series."""
    outline = _SHAPES[number % len(_SHAPES)].format(x=x, y=y, r=r, d=2 * r)
    return f'<path class="point{" hollow" if is_hollow else ""} c{number % COLORS}" d="{outline}"/>'


def whisker(x: float, low: float, high: float, *, floor: float = FLOOR) -> str:
    """Return an interval, or an empty string if it is too small to see.

    Args:
        x: its x coordinate.
        low: y coordinate of its lower end, clipped at `floor`.
        high: y coordinate of its upper end; above the chart it becomes an arrow.
        floor: y coordinate of the lower edge of the chart.
    """
    if abs(low - high) < 1:
        return ""
    upper = f"M{x - 4:.1f},{high:.1f}h8" if high >= TOP else f"M{x - 4:.1f},{TOP + 5}L{x:.1f},{TOP}l4,5"
    lower = f"M{x - 4:.1f},{low:.1f}h8" if low <= floor else ""
    return f'<path class="whisker" d="M{x:.1f},{min(low, floor):.1f}V{max(high, TOP):.1f}{upper}{lower}"/>'


def _apart(xs: Iterable[float], x: Callable[[float], float]) -> list[float]:
    """Return those of the ascending `xs` that have room for a number."""
    found: list[float] = []
    for one in xs:
        if not found or x(one) - x(found[-1]) >= _APART:
            found.append(one)
    return found
