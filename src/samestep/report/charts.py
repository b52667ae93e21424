"""Draws charts of curves, of points with their ideal, of grouped and stacked bars, and time lines."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from samestep.base.units import percent, seconds_text
from samestep.report import drawing as draw
from samestep.report.drawing import (
    BOTTOM,
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    DataPoint,
    Legend,
    Scale,
    label,
)

_LOGARITHMIC = 8  # ratio of the greatest to the least x above which a chart of points has logarithmic axes
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
        curves = [self._band(k, line, x, y) for k, line in enumerate(lines)]
        for group in self._groups():
            for dash, k in enumerate(group[: 1 if _is_one(group) else None]):
                curves.append(self._curve(k, lines[k], x, y, dash=k if len(group) == 1 else dash))
        marks = (_mark(text, x(at)) for at, text in self.marks if x.low <= at <= x.high)
        return [draw.y_axis(y, self.y), axis, *curves, *marks]

    def _words(self) -> str:
        ends = (
            f"{name} from {label(points[0].y)} to {label(points[-1].y)}"
            for name, points in self._shown().items()
        )
        return f"{self.title}, {self.y} over {self.x}: {'; '.join(ends)}"

    def _legend(self) -> Legend:
        named = dict(enumerate(self._shown()))
        for first, *rest in filter(_is_one, self._groups()):
            named[first] = _equal_names([named[k] for k in (first, *rest)])
            for k in rest:
                del named[k]
        return [(draw.box(f"key {self._color(k)}", 0, 0, 10, 10), name) for k, name in named.items()]

    def _entries(self) -> Legend:
        return self._legend() if len(self._shown()) > 1 else ()

    def _groups(self) -> list[list[int]]:
        """Return the numbers of the lines, those of lines that lie on each other together."""
        lines = list(self._shown().values())
        values = [point.y for line in lines for point in line]
        tolerance = _EQUAL * (max(values) - min(values)) if values else 0.0
        groups: list[list[int]] = []
        for k, line in enumerate(lines):
            same = (
                group for group in groups if not self.stacked and _are_equal(lines[group[0]], line, tolerance)
            )
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


def _are_equal(first: Sequence[DataPoint], second: Sequence[DataPoint], tolerance: float) -> bool:
    """Return whether two lines have points at the same x that are at most `tolerance`."""
    return len(first) == len(second) and all(
        a.x == b.x and abs(a.y - b.y) <= tolerance for a, b in zip(first, second, strict=True)
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
    for line in lines.values():
        around = (-0.5, 0.5) if len(line) == 1 else (0.0,)  # an area needs a width
        points = [replace(point, x=point.x + by) for point in line for by in around]
        ends = [(low := tops.get(point.x, 0.0), low + point.y) for point in points]
        stacked.append(
            [replace(point, low=low, high=high) for point, (low, high) in zip(points, ends, strict=True)]
        )
        tops = {point.x: point.high for point in stacked[-1]}
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
        is_log = xs[-1] > _LOGARITHMIC * xs[0]
        right = WIDTH - RIGHT - 6 * len(self.ideal_name) - 6
        x = Scale.over(xs, LEFT + 24, right, base=2 if is_log else 0)
        y = self._y(xs, base=self.base if is_log else 0)
        axis = draw.x_axis(((x(at), label(at)) for at in xs), "workers")
        ideal = [(x(at), y(self.ideal(at))) for at in xs]
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


_WIDEST = 76  # width of a bar where few bars have much room
_TALL, _LEGIBLE = 15, 30
"""Least height of a part that shows its share, and least width of a bar that shows numbers."""
_TIME_WIDTH, _TIME_TOP = 1240, 8  # as wide as the page; no title is above the rows
_ROW, _BAR = 26, 18
"""Height of a row of a time line, and of the spans in it."""
_LABELED = 44  # least width of a span that shows its length

Kinds: TypeAlias = Sequence[tuple[str, str]]
"""Color class and name of each kind of part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a group."""

    name: str = ""  # text below the bar
    parts: Mapping[int, float]  # stacked values by their index in the chart's kinds
    ideal: float = 0.0  # ideal value, drawn as an empty frame if it exceeds the bar
    low: float = 0.0
    high: float = 0.0  # interval of the bar's value; equal ends for none
    text: str = ""  # text above the bar

    @property
    def value(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(Chart):
    """Groups of bars over the x axis."""

    x: str  # name of the x axis
    y: str  # name of the y axis, with its unit
    kinds: Kinds
    groups: Mapping[str, Sequence[Bar]]  # bars side by side, by the name of their group
    text: Callable[[float], str] = label  # formats a value for screen readers
    shares: bool = False  # whether each part shows its share of the bar

    def _shapes(self) -> list[str]:
        bars = self._bars()
        is_named = any(bar.name for bar in bars)
        floor = FLOOR - (13 if is_named else 0)
        most = max(max(bar.value, bar.ideal) for bar in bars)
        tops = [most, *(min(bar.high, draw.ROOM * most) for bar in bars)]
        y = Scale.over(tops, floor, TOP + 6, zero=True)
        room = (WIDTH - RIGHT - LEFT) / len(self.groups)
        shapes = [draw.y_axis(y, self.y)]
        for number, group in enumerate(self.groups.values()):
            width = min(_WIDEST, room * 0.84 / len(group))
            begin = LEFT + number * room + (room - width * len(group)) / 2
            for place, bar in enumerate(group):
                shapes += self._bar(bar, begin + (place + 0.06) * width, width * 0.88, y)
        shapes.append(draw.path("axis", f"M{LEFT},{floor}H{WIDTH - RIGHT}") if is_named else "")
        names = ((LEFT + (number + 0.5) * room, name) for number, name in enumerate(self.groups))
        return [*shapes, draw.x_axis(names, self.x)]

    def _words(self) -> str:
        values = (
            f"{' '.join(filter(None, (name, self.x, bar.name)))} {self.text(bar.value)}"
            for name, bars in self.groups.items()
            for bar in bars
        )
        return f"{self.title}, {self.y}: {', '.join(values)}"

    def _legend(self) -> Legend:
        return _legend(self.kinds, {kind for bar in self._bars() for kind in bar.parts})

    def _bars(self) -> list[Bar]:
        return [bar for group in self.groups.values() for bar in group]

    def _bar(self, bar: Bar, left: float, width: float, y: Scale) -> Iterator[str]:
        middle, whole, below = left + width / 2, bar.value, 0.0
        if bar.ideal > whole:
            yield draw.box("gap", left, y(bar.ideal), width, y(whole) - y(bar.ideal))
        for kind, value in bar.parts.items():
            top, bottom = y(below + value), y(below)
            below += value
            color = self.kinds[kind][0]
            yield draw.hatched(kind, color, left, top, width, bottom - top)
            if self.shares and whole and bottom - top >= _TALL and width >= _LEGIBLE:
                yield draw.text(f"on x {color}", middle, (top + bottom) / 2 + 4, percent(value / whole))
        if bar.high > bar.low:
            yield draw.whisker(middle, y(bar.low), y(bar.high), floor=y(0))
        if bar.text and width >= _LEGIBLE:
            yield draw.text("value x", middle, max(y(max(bar.ideal, whole, bar.high)), TOP) - 5, bar.text)
        if bar.name:
            yield draw.text("tick x", middle, y(0) + 13, bar.name)


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a rank, from begin to end in ms."""

    kind: int  # index in the chart's kinds
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine(Chart):
    """A chart of rows of spans over milliseconds, as wide as the page."""

    kinds: Kinds
    rows: Mapping[str, Sequence[Span]]  # the spans of each rank by its name; at least one row with a span

    def _size(self) -> tuple[int, int]:
        return _TIME_WIDTH, _TIME_TOP + _ROW * len(self.rows) + BOTTOM

    def _shapes(self) -> list[str]:
        end = max(span.end for span in self._spans())
        x = Scale(0.0, end or 1.0, LEFT, _TIME_WIDTH - RIGHT)
        ticks = ((x(tick), label(tick)) for tick in x.ticks(most=10))
        floor = self._size()[1] - BOTTOM
        shapes = [draw.x_axis(ticks, "ms", floor=floor, width=_TIME_WIDTH, grid=_TIME_TOP - 4)]
        for number, (name, spans) in enumerate(self.rows.items()):
            top = _TIME_TOP + number * _ROW
            shapes.append(draw.text("tick y", LEFT - 6, top + 13, name))
            shapes += [self._span(span, x(span.begin), x(span.end) - x(span.begin), top) for span in spans]
        return shapes

    def _words(self) -> str:
        rows = (
            f"{name}: " + ", ".join(f"{self.kinds[span.kind][1]} {_length(span)}" for span in spans)
            for name, spans in self.rows.items()
        )
        return f"{self.title}; {'; '.join(rows)}"

    def _legend(self) -> Legend:
        return _legend(self.kinds, {span.kind for span in self._spans()})

    def _spans(self) -> list[Span]:
        return [span for spans in self.rows.values() for span in spans]

    def _span(self, span: Span, left: float, width: float, top: float) -> str:
        color = self.kinds[span.kind][0]
        shape = draw.hatched(span.kind, color, left, top, width, _BAR)
        if width < _LABELED:
            return shape
        return shape + draw.text(f"on x {color}", left + width / 2, top + 13, _length(span))


def _length(span: Span) -> str:
    return seconds_text((span.end - span.begin) / 1e3)


def _legend(kinds: Kinds, shown: set[int]) -> Legend:
    return [(draw.hatched(kind, kinds[kind][0], 0, 0, 10, 10), kinds[kind][1]) for kind in sorted(shown)]
