"""What all charts have in common: their size, their axes, their legend, and the figure around them."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from samestep.report.scales import label

WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 36
"""Room around what is drawn."""
COLOURS = 8
"""Colours that the page's style has; more lines use them again."""
FLOOR = HEIGHT - BOTTOM
"""Where the x axis is."""


def figure(title: str, drawn: Iterable[str], *, words: str, legend: str = "", note: str = "") -> str:
    """Return a chart as a figure element.

    Args:
        title: said above.
        drawn: shapes, back to front.
        words: the chart for those who do not see it.
        legend: see `legend`.
        note: said below.
    """
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    above = f"<figcaption>{escape(title)}</figcaption>{legend}"
    return f"<figure>{above}{picture(drawn, words=words)}{below}</figure>"


def picture(drawn: Iterable[str], *, words: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return shapes as an SVG element that says in `words` what it shows."""
    opened = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}">'
    return f"{opened}{''.join(drawn)}</svg>"


def nothing(title: str) -> str:
    """Return the figure of a chart that has nothing to show."""
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">Nothing yet.</p></figure>'


def y_axis(
    place: Callable[[float], float], ticks: Iterable[float], name: str, text: Callable[[float], str] = label
) -> str:
    """Return lines across at `ticks`, and what the axis counts."""
    lines = "".join(
        f'<path class="grid" d="M{LEFT},{place(tick):.1f}H{WIDTH - RIGHT}"/>'
        f'<text class="tick y" x="{LEFT - 6}" y="{place(tick) + 4:.1f}">{escape(text(tick))}</text>'
        for tick in ticks
    )
    return lines + f'<text class="unit" x="4" y="11">{escape(name)}</text>'


def x_axis(place: Callable[[float], float], ticks: Iterable[float], name: str) -> str:
    """Return the x axis with a number at each of `ticks`, and what it counts."""
    return x_labels(((place(tick), label(tick)) for tick in ticks), name)


def x_labels(
    labels: Iterable[tuple[float, str]], name: str, *, floor: int = FLOOR, width: int = WIDTH
) -> str:
    """Return the x axis with texts at places of the page, and what it counts."""
    return "".join(
        f'<text class="tick x" x="{place:.1f}" y="{floor + 16}">{escape(text)}</text>'
        for place, text in labels
    ) + (
        f'<path class="axis" d="M{LEFT},{floor}H{width - RIGHT}"/>'
        f'<text class="unit x" x="{width - RIGHT}" y="{floor + BOTTOM - 4}">{escape(name)}</text>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of (shapes in a box of ten by ten, name), or nothing for fewer than two."""
    if len(entries) < 2:
        return ""
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true">{shape}</svg>{escape(name)}</li>'
        for shape, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def key(number: int) -> str:
    """Return the box of a legend for a colour."""
    return f'<rect class="key c{number % COLOURS}" width="10" height="10"/>'
