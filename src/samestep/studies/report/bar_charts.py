"""Draws grouped and stacked bar charts, with patterns besides colors and the gap to the ideal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from samestep.studies.report.axes import FLOOR, LEFT, RIGHT, TOP, WIDTH, figure, legend, x_labels, y_axis
from samestep.studies.report.point_charts import ROOM, whisker
from samestep.studies.report.scales import Scale, label, span, ticks
from samestep.studies.scaling.analysis.point_text import percent

_WIDEST = 76
_TALL = 15
"""Least height of a part that shows its share."""
_LEGIBLE = 30
"""Least width of a bar that shows numbers."""
_HATCHES = (
    "",  # plain
    "M0,8L8,0M-2,2L2,-2M6,10L10,6",  # rising
    "M0,0L8,8M-2,6L2,10M6,-2L10,2",  # falling
    "M0,2H8M0,6H8",  # across
    "M2,0V8M6,0V8",  # upright
    "M1,1h2v2h-2ZM5,5h2v2h-2Z",  # dots
    "M0,8L8,0M0,0L8,8",  # crossed
    "M0,2h4M4,6h4",  # dashes
)


@dataclass(frozen=True, slots=True)
class Part:
    """A stacked part of a bar."""

    kind: int
    """Index in the chart's kinds."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a group."""

    name: str
    """Text below the bar, or empty."""
    parts: Sequence[Part]
    ideal: float = 0.0
    """Ideal value, drawn as an empty frame if it exceeds the bar."""
    low: float = 0.0
    high: float = 0.0
    """Interval of the bar's value; equal ends for none."""
    text: str = ""
    """Text above the bar."""

    @property
    def value(self) -> float:
        """Sum of the parts."""
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class Group:
    """Bars side by side."""

    name: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Groups of bars over the x axis."""

    title: str
    x: str
    """Name of the x axis."""
    y: str
    """Name of the y axis, with its unit."""
    kinds: Sequence[tuple[str, str]]
    """Color class and name of each kind of part."""
    groups: Sequence[Group]
    text: Callable[[float], str] = label
    """Formats a value for screen readers."""
    shares: bool = False
    """Whether each part shows its share of the bar."""
    note: str = ""
    """Text below the chart."""

    def render(self) -> str:
        """Return the chart as a figure element."""
        bars = [bar for group in self.groups for bar in group.bars]
        is_named = any(bar.name for bar in bars)
        floor = FLOOR - (13 if is_named else 0)
        most = max(max(bar.value, bar.ideal) for bar in bars)
        y = Scale(*span([most, *(min(bar.high, ROOM * most) for bar in bars)], zero=True), floor, TOP + 6)
        room = (WIDTH - RIGHT - LEFT) / len(self.groups)
        parts = [y_axis(y, ticks(y.low, y.high), self.y)]
        for number, group in enumerate(self.groups):
            parts += self._group(group, LEFT + number * room, room, y)
        places = ((LEFT + (number + 0.5) * room, group.name) for number, group in enumerate(self.groups))
        axis = f'<path class="axis" d="M{LEFT},{floor}H{WIDTH - RIGHT}"/>' if is_named else ""
        parts += [axis, x_labels(places, self.x)]
        shown = {part.kind for bar in bars for part in bar.parts}
        entries = [(key(kind, self.kinds[kind][0]), self.kinds[kind][1]) for kind in sorted(shown)]
        return figure(self.title, parts, words=self._words(), legend=legend(entries), note=self.note)

    def _group(self, group: Group, left: float, room: float, y: Scale) -> Iterator[str]:
        width = min(_WIDEST, room * 0.84 / len(group.bars))
        begin = left + (room - width * len(group.bars)) / 2
        for number, bar in enumerate(group.bars):
            yield from self._bar(bar, begin + (number + 0.06) * width, width * 0.88, y)

    def _bar(self, bar: Bar, left: float, width: float, y: Scale) -> Iterator[str]:
        middle, whole, below = left + width / 2, bar.value, 0.0
        if bar.ideal > whole:
            yield box("gap", left, y(bar.ideal), width, y(whole) - y(bar.ideal))
        for part in bar.parts:
            top, bottom = y(below + part.value), y(below)
            below += part.value
            color = self.kinds[part.kind][0]
            yield hatched(part.kind, color, left, top, width, bottom - top)
            if self.shares and whole and bottom - top >= _TALL and width >= _LEGIBLE:
                at = f'x="{middle:.1f}" y="{(top + bottom) / 2 + 4:.1f}"'
                yield f'<text class="on x {color}" {at}>{percent(part.value / whole)}</text>'
        if bar.high > bar.low:
            yield whisker(middle, y(bar.low), y(bar.high), floor=y(0))
        if bar.text and width >= _LEGIBLE:
            above = max(y(max(bar.ideal, whole, bar.high)), TOP) - 5
            yield f'<text class="value x" x="{middle:.1f}" y="{above:.1f}">{escape(bar.text)}</text>'
        if bar.name:
            yield f'<text class="tick x" x="{middle:.1f}" y="{y(0) + 13:.1f}">{escape(bar.name)}</text>'

    def _words(self) -> str:
        """Return a description of the chart for screen readers."""
        values = (
            f"{' '.join(filter(None, (group.name, self.x, bar.name)))} {self.text(bar.value)}"
            for group in self.groups
            for bar in group.bars
        )
        return f"{self.title}, {self.y}: {', '.join(values)}"


def patterns() -> str:
    """Return the patterns that `hatched` refers to; a page needs them once."""
    drawn = "".join(
        f'<pattern id="hatch{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="hatch" d="{path}"/></pattern>'
        for number, path in enumerate(_HATCHES)
        if path
    )
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{drawn}</defs></svg>'


def hatched(kind: int, color: str, left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle with a color and the pattern of a kind."""
    number = kind % len(_HATCHES)
    plain = box(f"part {color}", left, top, width, height)
    if not _HATCHES[number]:
        return plain
    return plain + box("", left, top, width, height, f' fill="url(#hatch{number})"')


def key(kind: int, color: str) -> str:
    """Return the legend box of a kind."""
    return hatched(kind, color, 0, 0, 10, 10)


def box(names: str, left: float, top: float, width: float, height: float, more: str = "") -> str:
    """Return a rectangle with the CSS classes `names`."""
    kind = f' class="{names}"' if names else ""
    return f'<rect{kind} x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>'
