"""Draws grouped and stacked bars with the gap to the ideal, and time lines, in patterns besides colors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from samestep.base.units import percent
from samestep.report import drawing as draw
from samestep.report.drawing import BOTTOM, FLOOR, LEFT, RIGHT, TOP, WIDTH, Chart, Legend
from samestep.report.scales import Scale, label

_WIDEST = 76
_TALL, _LEGIBLE = 15, 30
"""Least height of a part that shows its share, and least width of a bar that shows numbers."""
_TIME_WIDTH, _TIME_TOP = 1240, 8
_ROW, _BAR = 26, 18
"""Height of a row of a time line, and of the spans in it."""
_WIDE = 44  # least width of a span that shows its length

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
            f"{name}: " + ", ".join(f"{self.kinds[one.kind][1]} {_length(one)}" for one in spans)
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
        if width < _WIDE:
            return shape
        return shape + draw.text(f"on x {color}", left + width / 2, top + 13, _length(span))


def _length(span: Span) -> str:
    return f"{span.end - span.begin:.3g} ms"


def _legend(kinds: Kinds, shown: set[int]) -> Legend:
    return [(draw.hatched(kind, kinds[kind][0], 0, 0, 10, 10), kinds[kind][1]) for kind in sorted(shown)]
