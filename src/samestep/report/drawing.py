"""Draws the parts of all charts as SVG: scales with round numbers, axes, points, bars, legend, the figure."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values ``low .. high``, or their logarithms, linearly to coordinates ``start .. stop``."""

    low: float
    high: float
    start: float
    stop: float
    base: int = 0  # base of the logarithms; 0 for values

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, stop: float, *, base: int = 0, zero: bool = False
    ) -> "Scale":
        """Return a scale that holds `values`, which are positive if it has a `base`; `zero`: see `span`."""
        known = [math.log(value, base) for value in values] if base else values
        return cls(*span(known, zero=zero), start, stop, base)

    def __call__(self, value: float) -> float:
        """Return the coordinate of `value`."""
        known = math.log(value, self.base) if self.base else value
        return self.start + (known - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self, *, most: int = 6) -> list[float]:
        """Return at most `most` round numbers on the scale; powers of a base can be one more."""
        if not self.base:
            return ticks(self.low, self.high, most=most)
        every = 1
        while (self.high - self.low) / every > most + 1:
            every *= 2
        first, last = math.ceil(self.low / every - 1e-9), math.floor(self.high / every + 1e-9)
        return [float(self.base) ** (every * number) for number in range(first, last + 1)]


def span(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """Return the range of the finite `values`, and of 0 if `zero`; it is widened if it is empty."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) / 2 or 0.5
        low, high = (low if zero and low == 0 else low - room), high + room
    return low, high


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most `most` round numbers in ``low .. high``, 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) <= most - 1)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def label(value: float) -> str:
    """Return a number as short text for an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.1e}"


@dataclass(frozen=True, slots=True)
class DataPoint:
    """A value with its interval: of repeats, or the least and greatest of neighboring values."""

    x: float
    y: float
    low: float
    high: float
    is_hollow: bool = False  # whether the point is drawn hollow


def thin(xs: Sequence[float], ys: Sequence[float], *, most: int = 400) -> list[DataPoint]:
    """Return at most `most` means of neighboring points, which keep all extremes.

    Each has the x of its last point. Values that are not finite are ignored.
    """
    width = -(-len(xs) // most) or 1
    means = []
    for start in range(0, len(xs), width):
        values = [y for y in ys[start : start + width] if math.isfinite(y)]
        if values:
            x = xs[min(start + width, len(xs)) - 1]
            means.append(DataPoint(x, math.fsum(values) / len(values), min(values), max(values)))
    return means


WIDTH, HEIGHT = 640, 270
"""Size of a chart, in units that are pixels where it is not scaled; two fit side by side on a page."""
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 26, 36
"""Margins around the plot area."""
FLOOR = HEIGHT - BOTTOM
"""Y coordinate of the x axis."""
ROOM = 1.15
"""Largest ratio of an interval's end to all values; beyond it the interval is clipped."""
_APART = 22  # least distance of two texts on the x axis
STYLE = "charts.css"
"""Style sheet of charts, for pages and for saved figures."""
PARTS: Mapping[str, tuple[str, str]] = {
    "forward": ("forward", "forward"),
    "backward": ("backward", "backward"),
    "optimizer": ("optimizer", "optimizer"),
    "to_device": ("device", "to the device"),
    "data": ("data", "waiting for data"),
    "exposed_sync": ("sync", "exposed communication"),
    "waiting": ("waiting", "waiting for other ranks"),
    "other": ("other", "other"),
}
"""Color class and name of each part of a step, from the bottom of a bar."""
_COLORS = 8  # number of colors in the style sheet; further lines reuse them
_SHAPES = (
    "M{x:.1f},{y:.1f}m-{r},0a{r},{r} 0 1,0 {d},0a{r},{r} 0 1,0 -{d},0Z",  # a circle
    "M{x:.1f},{y:.1f}m-{r},-{r}h{d}v{d}h-{d}Z",  # a square
    "M{x:.1f},{y:.1f}m0,-{r}l{r},{d}h-{d}Z",  # a triangle
    "M{x:.1f},{y:.1f}m0,-{r}l{r},{r}l-{r},{r}l-{r},-{r}Z",  # a diamond
)
DASHES = len(_SHAPES)
"""Number of patterns of lines; each leaves a part of the one below it visible."""
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
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FONTS = "Helvetica, Arial, Liberation Sans, sans-serif"


Legend: TypeAlias = Sequence[tuple[str, str]]
"""Shapes in a 10 by 10 box, and their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, for a page or for a file of its own; each kind of chart has its own shapes."""

    title: str
    note: str = ""  # text below the chart
    name: str = ""  # name of its files; by default the title

    def _shapes(self) -> list[str]:
        """Return SVG elements, back to front; none if there are no data."""
        raise NotImplementedError

    def _words(self) -> str:
        """Return a description for screen readers."""
        raise NotImplementedError

    def _legend(self) -> Legend:
        """Return the legend, which is shown if it has two or more entries."""
        raise NotImplementedError

    def _size(self) -> tuple[int, int]:
        """Return width and height."""
        return WIDTH, HEIGHT

    def stem(self) -> str:
        """Return the name of its files without suffix: lowercase letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", (self.name or self.title).lower()).strip("-")

    def render(self) -> str:
        """Return the chart as an element of a page, which has the style sheet and `patterns`."""
        caption, shapes = f"<figcaption>{escape(self.title)}</figcaption>", "".join(self._shapes())
        if not shapes:
            return f'<figure>{caption}<p class="none">Nothing yet.</p></figure>'
        items = "".join(
            f'<li><svg viewBox="0 0 10 10" aria-hidden="true">{shape}</svg>{escape(name)}</li>'
            for shape, name in self._entries()
        )
        legend = f'<ul class="legend">{items}</ul>' if items else ""
        box = "0 0 {} {}".format(*self._size())
        drawn = f'<svg viewBox="{box}" role="img" aria-label="{escape(self._words())}">{shapes}</svg>'
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return f"<figure>{caption}{legend}{drawn}{note}</figure>"

    def svg(self) -> str:
        """Return the chart as a file of its own, in light colors, with its title; empty without data."""
        (width, height), shapes = self._size(), "".join(self._shapes())
        if not shapes:
            return ""
        entries, left, top = "", 4, 30
        for shape, name in self._entries():
            room = 30 + 6 * len(name)  # most letters are narrower than 6
            if left > 4 and left + room > width:
                left, top = 4, top + 17
            entries += f'<g transform="translate({left},{top})">{shape}{text("entry", 15, 9, name)}</g>'
            left += room
        above = top + 16 if entries else 28
        head = box("paper", 0, 0, width, height + above) + text("title", 4, 18, self.title) + entries
        defined = _definitions() if "url(#" in shapes else ""
        drawn = f'{defined}{head}<g transform="translate(0,{above})">{shapes}</g>'
        document = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + above}" width="{width}" '
            f'height="{height + above}" font-family="{_FONTS}">\n<title>{escape(self.title)}</title>\n'
            f"<desc>{escape(f'{self._words()}. {self.note}'.rstrip())}</desc>\n"
            + re.sub(r'(?<=<)(\w+) class="([^"]*)"', _with_attributes, drawn)
            + "\n</svg>\n"
        )
        return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", document)

    def _entries(self) -> Legend:
        entries = self._legend()
        return entries if len(entries) > 1 else ()


def _with_attributes(match: re.Match[str]) -> str:
    """Return the begin of an element, with attributes instead of its classes."""
    tag, classes = match.groups()
    matched = {":root", tag, *classes.split()}
    style: dict[str, str] = {}
    for name, declarations in _rules():
        if name in matched:
            style |= declarations
    attributes = (f'{name}="{_resolved(value, style)}"' for name, value in style.items() if name[0] != "-")
    return " ".join([tag, *attributes])


def _resolved(value: str, style: Mapping[str, str]) -> str:
    """Return a value of the style sheet without variables."""
    variable = re.fullmatch(r"var\((.*)\)", value)
    return _resolved(style[variable[1]], style) if variable else value


@cache
def _rules() -> list[tuple[str, dict[str, str]]]:
    """Return the rules of `STYLE` in light colors: a tag, a class or ``:root``, and its declarations."""
    sheet = (files("samestep.report") / STYLE).read_text(encoding="utf-8")
    rules = []
    for name, block in re.findall(r"^(?:svg |\.)?(:root|\w+) \{(.*?)\}", sheet, re.MULTILINE | re.DOTALL):
        pairs = (declaration.split(":", 1) for declaration in block.split(";") if declaration.strip())
        rules.append((name, {key.strip(): value.strip() for key, value in pairs}))
    # A saved figure has no card behind it.
    return [*rules, (":root", {"--card": "var(--paper)"})]


def patterns() -> str:
    """Return the patterns that `hatched` refers to, which a page needs once."""
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true">{_definitions()}</svg>'


def _definitions() -> str:
    drawn = "".join(
        f'<pattern id="hatch{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f"{path('hatch', d)}</pattern>"
        for number, d in enumerate(_HATCHES)
        if d
    )
    return f"<defs>{drawn}</defs>"


def text(names: str, x: float, y: float, words: str) -> str:
    """Return a text with the CSS classes `names`."""
    return f'<text class="{names}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def path(names: str, d: str) -> str:
    """Return a path with the CSS classes `names`."""
    return f'<path class="{names}" d="{d}"/>'


def line(names: str, points: Iterable[tuple[float, float]], *, end: str = "") -> str:
    """Return a line through coordinates, with the CSS classes `names`; `end` is Z for an area."""
    return path(names, f"M{'L'.join(f'{x:.1f},{y:.1f}' for x, y in points)}{end}")


def box(names: str, left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle with the CSS classes `names`."""
    return f'<rect class="{names}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def hatched(kind: int, color: str, left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle with a color and the pattern of a kind."""
    plain = box(f"part {color}", left, top, width, height)
    number = kind % len(_HATCHES)
    if not number:
        return plain
    return plain + plain.replace(f'class="part {color}"', f'fill="url(#hatch{number})"')


def color(number: int) -> str:
    """Return the CSS class of a color."""
    return f"c{number % _COLORS}"


def marker(number: int, x: float, y: float, *, r: float = 4.5, is_hollow: bool = False) -> str:
    """Return the marker of a series."""
    outline = _SHAPES[number % len(_SHAPES)].format(x=x, y=y, r=r, d=2 * r)
    return path(f"point{' hollow' if is_hollow else ''} {color(number)}", outline)


def dashed(number: int, dash: int | None = None) -> str:
    """Return the CSS classes of the line of a series, whose pattern is `dash`, or that of its number."""
    return f"line {color(number)} dash{(number if dash is None else dash) % DASHES}"


def whisker(x: float, low: float, high: float, *, floor: float = FLOOR) -> str:
    """Return an interval, clipped at `floor` and as an arrow at the top; empty if it is too small to see."""
    if abs(low - high) < 1:
        return ""
    upper = f"M{x - 4:.1f},{high:.1f}h8" if high >= TOP else f"M{x - 4:.1f},{TOP + 5}L{x:.1f},{TOP}l4,5"
    lower = f"M{x - 4:.1f},{low:.1f}h8" if low <= floor else ""
    return path("whisker", f"M{x:.1f},{min(low, floor):.1f}V{max(high, TOP):.1f}{upper}{lower}")


def y_axis(y: Scale, name: str, words: Callable[[float], str] = label) -> str:
    """Return grid lines at round numbers, and the name of the y axis."""
    lines = (
        path("grid", f"M{LEFT},{y(tick):.1f}H{WIDTH - RIGHT}")
        + text("tick y", LEFT - 6, y(tick) + 4, words(tick))
        for tick in y.ticks(most=round((y.start - y.stop) / 34))
    )
    return "".join(lines) + text("unit", 4, 11, name)


def x_axis(
    labels: Iterable[tuple[float, str]],
    name: str,
    *,
    floor: float = FLOOR,
    width: int = WIDTH,
    grid: float | None = None,
) -> str:
    """Return the x axis with its name, the texts with room, and lines up to the y coordinate `grid`."""
    parts, last = [], 0.0
    for place, words in labels:
        parts.append(path("grid", f"M{place:.1f},{floor}V{grid}") if grid is not None else "")
        if place - last >= _APART:
            last = place
            parts.append(text("tick x", place, floor + 16, words))
    parts.append(path("axis", f"M{LEFT},{floor}H{width - RIGHT}"))
    parts.append(text("unit y", width - RIGHT, floor + BOTTOM - 4, name))
    return "".join(parts)
