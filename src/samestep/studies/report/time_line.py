"""Draws one step as a time line with a row for each rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from samestep.studies.report.axes import BOTTOM, LEFT, RIGHT, legend, picture, x_labels
from samestep.studies.report.bar_charts import hatched, key
from samestep.studies.report.scales import Scale, label, ticks

_WIDTH = 1240
_ROW, _BAR = 26, 18
_TOP = 8
_WIDE = 44
"""Least width of a span that shows its length."""


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a rank, from begin to end in ms."""

    kind: int
    """Index in the chart's kinds."""
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Row:
    """The spans of one rank."""

    name: str
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """A chart of rows of spans over milliseconds."""

    title: str
    kinds: Sequence[tuple[str, str]]
    """Color class and name of each kind of span."""
    rows: Sequence[Row]
    """At least one row with a span."""
    note: str = ""
    """Text below the chart."""

    def render(self) -> str:
        """Return the time line as a figure element as wide as the page."""
        end = max(span.end for row in self.rows for span in row.spans)
        x = Scale(0.0, end or 1.0, LEFT, _WIDTH - RIGHT)
        floor = _TOP + _ROW * len(self.rows)
        across = [
            f'<path class="grid" d="M{x(tick):.1f},{_TOP - 4}V{floor}"/>'
            for tick in ticks(0.0, x.high, most=10)
        ]
        rows = [self._row(row, _TOP + number * _ROW, x) for number, row in enumerate(self.rows)]
        axis = x_labels(
            ((x(tick), label(tick)) for tick in ticks(0.0, x.high, most=10)), "ms", floor=floor, width=_WIDTH
        )
        shown = sorted({span.kind for row in self.rows for span in row.spans})
        entries = [(key(kind, self.kinds[kind][0]), self.kinds[kind][1]) for kind in shown]
        drawn = picture([*across, *rows, axis], words=self._words(), width=_WIDTH, height=floor + BOTTOM)
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        caption = f"<figcaption>{escape(self.title)}</figcaption>"
        return f'<figure class="whole">{caption}{legend(entries)}{drawn}{note}</figure>'

    def _row(self, row: Row, top: float, x: Scale) -> str:
        name = f'<text class="tick y" x="{LEFT - 6}" y="{top + 13}">{escape(row.name)}</text>'
        shapes = [name]
        for span in row.spans:
            left, width = x(span.begin), x(span.end) - x(span.begin)
            color = self.kinds[span.kind][0]
            shapes.append(hatched(span.kind, color, left, top, width, _BAR))
            if width >= _WIDE:
                at = f'x="{left + width / 2:.1f}" y="{top + 13}"'
                shapes.append(f'<text class="on x {color}" {at}>{span.end - span.begin:.3g} ms</text>')
        return "".join(shapes)

    def _words(self) -> str:
        """Return a description of the time line for screen readers."""
        rows = (
            f"{row.name}: "
            + ", ".join(f"{self.kinds[one.kind][1]} {one.end - one.begin:.3g} ms" for one in row.spans)
            for row in self.rows
        )
        return f"{self.title}; {'; '.join(rows)}"
