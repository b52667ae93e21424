"""Draws the common parts of all charts: axes, legend, and the surrounding figure."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from samestep.studies.report.scales import label

WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 36
"""Margins around the plot area."""
COLORS = 8
"""Number of colors in the style sheet; further lines reuse them."""
FLOOR = HEIGHT - BOTTOM
"""Y coordinate of the x axis."""


def figure(title: str, drawn: Iterable[str], *, words: str, legend: str = "", note: str = "") -> str:
    """Return a chart as a figure element.

    Args:
        title: caption above the chart.
        drawn: shapes, back to front.
        words: description of the chart for screen readers.
        legend: see `legend`.
        note: text below the chart.
    """
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    above = f"<figcaption>{escape(title)}</figcaption>{legend}"
    return f"<figure>{above}{picture(drawn, words=words)}{below}</figure>"


def picture(drawn: Iterable[str], *, words: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return shapes as an SVG element with the description `words`."""
    opened = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}">'
    return f"{opened}{''.join(drawn)}</svg>"


def nothing(title: str) -> str:
    """Return the figure of a chart without data."""
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">Nothing yet.</p></figure>'


def y_axis(
    place: Callable[[float], float], ticks: Iterable[float], name: str, text: Callable[[float], str] = label
) -> str:
    """Return grid lines at `ticks`, and the name of the y axis."""
    lines = "".join(
        f'<path class="grid" d="M{LEFT},{place(tick):.1f}H{WIDTH - RIGHT}"/>'
        f'<text class="tick y" x="{LEFT - 6}" y="{place(tick) + 4:.1f}">{escape(text(tick))}</text>'
        for tick in ticks
    )
    return lines + f'<text class="unit" x="4" y="11">{escape(name)}</text>'


def x_axis(place: Callable[[float], float], ticks: Iterable[float], name: str) -> str:
    """Return the x axis with a number at each of `ticks`, and its name."""
    return x_labels(((place(tick), label(tick)) for tick in ticks), name)


def x_labels(
    labels: Iterable[tuple[float, str]], name: str, *, floor: int = FLOOR, width: int = WIDTH
) -> str:
    """Return the x axis with texts at x coordinates, and its name."""
    return "".join(
        f'<text class="tick x" x="{place:.1f}" y="{floor + 16}">{escape(text)}</text>'
        for place, text in labels
    ) + (
        f'<path class="axis" d="M{LEFT},{floor}H{width - RIGHT}"/>'
        f'<text class="unit x" x="{width - RIGHT}" y="{floor + BOTTOM - 4}">{escape(name)}</text>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of (shapes in a 10 by 10 box, name); empty for fewer than two entries."""
    if len(entries) < 2:
        return ""
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true">{shape}</svg>{escape(name)}</li>'
        for shape, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def key(number: int) -> str:
    """Return the legend box of a color."""
    return f'<rect class="key c{number % COLORS}" width="10" height="10"/>'
