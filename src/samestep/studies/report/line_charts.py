"""Draws line and area charts as inline SVG; the page's style sheet sets colors and fonts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from samestep.studies.report.axes import (
    COLORS,
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    figure,
    key,
    legend,
    nothing,
    x_axis,
    y_axis,
)
from samestep.studies.report.scales import Bin, Scale, label, span, ticks


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, with a band from the least to the greatest value of each bin."""

    name: str
    bins: Sequence[Bin]


@dataclass(frozen=True, slots=True)
class Mark:
    """A labeled position on the x axis."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of lines or stacked areas."""

    title: str
    x: str
    """Name of the x axis."""
    y: str
    """Name of the y axis, with its unit."""
    lines: Sequence[Line]
    marks: Sequence[Mark] = field(default=())
    stacked: bool = False
    """Whether the lines are stacked areas; their bins then have the same x."""
    zero: bool = False
    """Whether the y axis begins at 0."""
    note: str = ""
    """Text below the chart."""

    def render(self) -> str:
        """Return the chart as a figure element, or a sentence if there are no data."""
        drawn = [line for line in self.lines if line.bins]
        if not drawn:
            return nothing(self.title)
        x = Scale(*span(one.x for line in drawn for one in line.bins), LEFT, WIDTH - RIGHT)
        y, shapes = _areas(drawn, x) if self.stacked else _lines(drawn, x, zero=self.zero)
        parts = [
            y_axis(y, ticks(y.low, y.high), self.y),
            x_axis(x, ticks(x.low, x.high), self.x),
            *(_mark(mark, x) for mark in self.marks if x.low <= mark.x <= x.high),
            *shapes,
        ]
        entries = [(key(number), line.name) for number, line in enumerate(drawn)]
        return figure(self.title, parts, words=self._words(drawn), legend=legend(entries), note=self.note)

    def _words(self, drawn: Sequence[Line]) -> str:
        """Return a description of the chart for screen readers."""
        ends = "; ".join(
            f"{line.name} from {label(line.bins[0].mean)} to {label(line.bins[-1].mean)}" for line in drawn
        )
        return f"{self.title}, {self.y} over {self.x}: {ends}"


def _lines(lines: Sequence[Line], x: Scale, *, zero: bool) -> tuple[Scale, list[str]]:
    values = [value for line in lines for one in line.bins for value in (one.low, one.high)]
    y = Scale(*span(values, zero=zero), FLOOR, TOP)
    shapes = []
    for number, line in enumerate(lines):
        color = f"c{number % COLORS}"
        if any(one.low < one.high for one in line.bins):
            outline = [(one.x, one.high) for one in line.bins] + [
                (one.x, one.low) for one in reversed(line.bins)
            ]
            shapes.append(f'<path class="band {color}" d="{_path(outline, x, y)}Z"/>')
        means = [(one.x, one.mean) for one in line.bins]
        if len(means) == 1:
            shapes.append(
                f'<circle class="dot {color}" cx="{x(means[0][0]):.1f}" cy="{y(means[0][1]):.1f}" r="3"/>'
            )
        else:
            shapes.append(f'<path class="line {color}" d="{_path(means, x, y)}"/>')
    return y, shapes


def _areas(lines: Sequence[Line], x: Scale) -> tuple[Scale, list[str]]:
    tops = [[0.0] * len(lines[0].bins)]
    for line in lines:
        tops.append([below + one.mean for below, one in zip(tops[-1], line.bins, strict=True)])
    y = Scale(*span(tops[-1], zero=True), FLOOR, TOP)
    xs = [one.x for one in lines[0].bins]
    if len(xs) == 1:  # an area needs a width
        xs, tops = [x.low, x.high], [[*top, *top] for top in tops]
    shapes = []
    for number, (below, above) in enumerate(pairwise(tops)):
        upper = list(zip(xs, above, strict=True))
        outline = upper + list(zip(xs, below, strict=True))[::-1]
        shapes.append(f'<path class="area c{number % COLORS}" d="{_path(outline, x, y)}Z"/>')
    return y, shapes


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def _mark(mark: Mark, x: Scale) -> str:
    place = x(mark.x)
    return (
        f'<path class="mark" d="M{place:.1f},{TOP}V{FLOOR}"/>'
        f'<text class="marked" x="{place + 3:.1f}" y="{TOP + 8}">{escape(mark.text)}</text>'
    )
