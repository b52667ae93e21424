"""Draws charts of lines: curves and stacked areas over the steps, and measured points with their ideal."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from samestep.report import drawing as draw
from samestep.report.drawing import FLOOR, LEFT, RIGHT, TOP, WIDTH, Chart, Legend
from samestep.report.scales import DataPoint, Scale, label

_WIDE = 8  # ratio of the greatest to the least x above which a chart of points has logarithmic axes
_MOST_VALUES = 12  # maximum number of points with their values beside them
_EQUAL = 1 / 200  # part of the values' range that is less than a pixel
_LONGEST_NAME = 90  # letters of a name in the legend of a saved figure

Lines: TypeAlias = Mapping[str, Sequence[DataPoint]]
"""The points of each line by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(Chart):
    """A chart of curves, each in a band of its intervals, or of stacked areas."""

    x: str  # name of the x axis
    y: str  # name of the y axis, with its unit
    lines: Lines
    marks: Sequence[tuple[float, str]] = ()  # labeled positions on the x axis
    stacked: bool = False  # whether the lines are stacked areas; their points then have the same x
    zero: bool = False  # whether the y axis begins at 0
    most: float = math.inf  # the largest value that there can be, where the y axis ends at the latest
    ends: Sequence[float] = ()  # values that the x axis includes, such as the ends of other charts' axes
    colors: Mapping[str, str] = field(default_factory=dict)  # color classes of lines that have their own

    def _shapes(self) -> list[str]:
        lines = _stacked(self._shown()) if self.stacked else list(self._shown().values())
        points = [point for line in lines for point in line]
        if not points:
            return []
        x = Scale.over((*self.ends, *(point.x for point in points)), LEFT, WIDTH - RIGHT)
        ends = (end for point in points for end in (point.low, point.high))
        y = Scale.over(ends, FLOOR, TOP, zero=self.zero or self.stacked)
        y = replace(y, high=min(y.high, self.most))
        axis = draw.x_axis(((x(tick), label(tick)) for tick in x.ticks()), self.x)
        # No band lies above a line, so that equal lines keep their colors.
        curves = [self._band(k, one, x, y) for k, one in enumerate(lines)]
        for group in self._groups():
            for dash, k in enumerate(group[: 1 if _is_one(group) else None]):
                curves.append(self._curve(k, lines[k], x, y, dash=k if len(group) == 1 else dash))
        marks = (_mark(text, x(at)) for at, text in self.marks if x.low <= at <= x.high)
        return [draw.y_axis(y, self.y), axis, *curves, *marks]

    def _words(self) -> str:
        ends = (f"{name} from {label(one[0].y)} to {label(one[-1].y)}" for name, one in self._shown().items())
        return f"{self.title}, {self.y} over {self.x}: {'; '.join(ends)}"

    def _legend(self) -> Legend:
        names = list(self._shown())
        named = {k: names[k] for k in range(len(names))}
        for first, *others in filter(_is_one, self._groups()):
            named[first] = _equal_names([names[k] for k in (first, *others)])
            for k in others:
                del named[k]
        return [(draw.box(f"key {self._color(k)}", 0, 0, 10, 10), name) for k, name in named.items()]

    def _entries(self) -> Legend:
        return self._legend() if len(self._shown()) > 1 else ()

    def _groups(self) -> list[list[int]]:
        """Return the numbers of the lines, those of lines that lie on each other together."""
        lines = list(self._shown().values())
        values = [point.y for line in lines for point in line]
        apart = _EQUAL * (max(values) - min(values)) if values else 0.0
        groups: list[list[int]] = []
        for k, line in enumerate(lines):
            same = (one for one in groups if not self.stacked and _are_equal(lines[one[0]], line, apart))
            if (group := next(same, None)) is None:
                groups.append([k])
            else:
                group.append(k)
        return groups

    def _color(self, number: int) -> str:
        """Return the color class of a line."""
        return self.colors.get(list(self._shown())[number], draw.color(number))

    def _shown(self) -> Lines:
        return {name: points for name, points in self.lines.items() if points}

    def _band(self, number: int, points: Sequence[DataPoint], x: Scale, y: Scale) -> str:
        if not any(point.low < point.high for point in points):
            return ""
        above = [(x(point.x), y(point.high)) for point in points]
        below = [(x(point.x), y(point.low)) for point in reversed(points)]
        kind = "area" if self.stacked else "band"
        return draw.line(f"{kind} {self._color(number)}", above + below, end="Z")

    def _curve(self, number: int, points: Sequence[DataPoint], x: Scale, y: Scale, *, dash: int) -> str:
        if len(points) == 1:
            return draw.marker(number, x(points[0].x), y(points[0].y), r=3)
        if self.stacked:
            return ""
        return draw.line(draw.dashed(number, dash), [(x(point.x), y(point.y)) for point in points])


def _are_equal(one: Sequence[DataPoint], other: Sequence[DataPoint], apart: float) -> bool:
    """Return whether two lines have points at the same x that are at most `apart`."""
    return len(one) == len(other) and all(
        a.x == b.x and abs(a.y - b.y) <= apart for a, b in zip(one, other, strict=True)
    )


def _is_one(group: Sequence[int]) -> bool:
    """Return whether equal lines are too many to be seen through each other, and are drawn as one."""
    return len(group) > draw.DASHES


def _equal_names(names: Sequence[str]) -> str:
    """Return the name of lines that are drawn as one.

    >>> _equal_names(["1 worker", "2 workers"])
    '1 worker, 2 workers: equal'
    """
    shown = len(names)
    while shown > 1 and len(", ".join(names[:shown])) > _LONGEST_NAME:
        shown -= 1
    more = f" and {len(names) - shown} more" if shown < len(names) else ""
    return f"{', '.join(names[:shown])}{more}: equal"


def _stacked(lines: Lines) -> list[list[DataPoint]]:
    """Return lines whose intervals begin where those of the line before end."""
    tops: dict[float, float] = {}
    stacked = []
    for given in lines.values():
        around = (-0.5, 0.5) if len(given) == 1 else (0.0,)  # an area needs a width
        points = [replace(point, x=point.x + by) for point in given for by in around]
        ends = [(low := tops.get(point.x, 0.0), low + point.y) for point in points]
        stacked.append(
            [replace(one, low=low, high=high) for one, (low, high) in zip(points, ends, strict=True)]
        )
        tops = {one.x: one.high for one in stacked[-1]}
    return stacked


def _mark(words: str, place: float) -> str:
    return draw.path("mark", f"M{place:.1f},{TOP}V{FLOOR}") + draw.text("marked", place + 3, TOP + 8, words)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChart(Chart):
    """A chart of measured points with their intervals, and of their ideal."""

    y: str  # name of the y axis, with its unit
    lines: Lines  # at least one line with a point; x is positive
    ideal: Callable[[float], float]  # returns the ideal value at an x
    ideal_name: str = "ideal"
    base: int = 0  # base of the y axis if the x axis is logarithmic; 0 for a linear one, which begins at 0
    limit: tuple[float, str] | None = None  # required level and its name
    tick: Callable[[float], str] = label  # formats a number on the y axis
    text: Callable[[float], str] = label  # formats a value

    def _shapes(self) -> list[str]:
        xs = sorted({point.x for points in self.lines.values() for point in points})
        is_log = xs[-1] > _WIDE * xs[0]
        right = WIDTH - RIGHT - 6 * len(self.ideal_name) - 6
        x = Scale.over(xs, LEFT + 24, right, base=2 if is_log else 0)
        y = self._y(xs, base=self.base if is_log else 0)
        axis = draw.x_axis(((x(one), label(one)) for one in xs), "workers")
        ideal = [(x(one), y(self.ideal(one))) for one in xs]
        named = draw.text("marked", ideal[-1][0] + 6, ideal[-1][1] + 4, self.ideal_name)
        lines = (
            shape
            for number, points in enumerate(self.lines.values())
            for shape in self._points(number, sorted(points, key=lambda point: point.x), x, y)
        )
        axes = draw.y_axis(y, self.y, self.tick) + axis
        return [axes, draw.line("ideal", ideal), named, self._limit(y), *lines]

    def _words(self) -> str:
        return "; ".join(
            f"{self.title}{', ' + name if len(self.lines) > 1 else ''}: "
            + ", ".join(f"{self.text(point.y)} at {label(point.x)} workers" for point in points)
            for name, points in self.lines.items()
        )

    def _legend(self) -> Legend:
        return [(draw.marker(number, 5, 5, r=4), name) for number, name in enumerate(self.lines)]

    def _y(self, xs: Sequence[float], *, base: int) -> Scale:
        points = [point for line in self.lines.values() for point in line]
        values = [point.y for point in points]
        values += [self.ideal(x) for x in xs] + ([self.limit[0]] if self.limit else [])
        least, most = min(values) / draw.ROOM, max(values) * draw.ROOM
        values += [max(point.low, least) for point in points] + [min(point.high, most) for point in points]
        return Scale.over(values, FLOOR - (14 if base else 0), TOP, base=base, zero=not base)

    def _limit(self, y: Scale) -> str:
        if self.limit is None:
            return ""
        value, name = self.limit
        level = draw.path("limit", f"M{LEFT},{y(value):.1f}H{WIDTH - RIGHT}")
        return level + draw.text("marked limited", LEFT + 4, y(value) + 12, name)

    def _points(self, number: int, points: Sequence[DataPoint], x: Scale, y: Scale) -> Iterator[str]:
        places = [(x(point.x), y(point.y)) for point in points]
        yield draw.line(draw.dashed(number), places)
        for point, (left, top) in zip(points, places, strict=True):
            yield draw.whisker(left, y(point.low), y(point.high))
            yield draw.marker(number, left, top, is_hollow=point.is_hollow)
            if len(self.lines) == 1 and len(points) <= _MOST_VALUES:
                # Below the point, clear of the ideal line; above it if the axis is too near.
                beside = top + 20 if top + 24 < FLOOR else top - 10
                yield draw.text("value", left + 4, beside, self.text(point.y))
