"""Draws times over sizes as SVG with logarithmic axes, a line for each algorithm and one for copying."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from samestep.base.units import bytes_text, seconds_text
from samestep.studies.report.scales import Scale, span

WIDTH, HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 40, 50
_COLORS = ("#0b6bcb", "#d1495b", "#2e8b57", "#8a5cc2", "#c98a00", "#00868b", "#8b5a2b", "#666666")
_COPYING = "#999999"

Points = Mapping[int, float]
"""Seconds by bytes."""
Drawn = tuple[str, Points, str, str]
"""Name, points, color and dash pattern of a line."""


def render(times: Mapping[str, Points], *, copying: Points, title: str) -> str:
    """Return the picture as a standalone SVG.

    Args:
        times: points of each algorithm.
        copying: time of copying the fewest bytes that must move, while all ranks copy.
        title: title of the picture.
    """
    every = [*times.values(), copying]
    x = Scale(*span(math.log2(nbytes) for one in every for nbytes in one), _LEFT, WIDTH - _RIGHT)
    y = Scale(*span(math.log10(seconds) for one in every for seconds in one.values()), HEIGHT - _BOTTOM, _TOP)
    lines: list[Drawn] = [
        (name, one, _COLORS[number % len(_COLORS)], "") for number, (name, one) in enumerate(times.items())
    ]
    lines.append(("copying memory", copying, _COPYING, ' stroke-dasharray="5 4"'))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
            f"<title>{escape(title)}</title>",
            '<g font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
            *_x_axis(x),
            *_y_axis(y),
            *(part for line in lines for part in _line(line, x=x, y=y)),
            *_legend(lines),
            "</g></svg>\n",
        ]
    )


def _line(line: Drawn, *, x: Scale, y: Scale) -> list[str]:
    _, points, color, dashes = line
    places = [(x(math.log2(nbytes)), y(math.log10(seconds))) for nbytes, seconds in sorted(points.items())]
    path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dots = (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{color}"/>' for a, b in places)
    return [
        f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>',
        *([] if dashes else dots),
    ]


def _legend(lines: Sequence[Drawn]) -> list[str]:
    left = WIDTH - _RIGHT + 14
    return [
        f'<path d="M{left},{_TOP + 20 * number}h18" stroke="{color}" stroke-width="2"{dashes}/>'
        f'<text x="{left + 24}" y="{_TOP + 20 * number + 4}">{escape(name)}</text>'
        for number, (name, _, color, dashes) in enumerate(lines)
    ]


def _x_axis(x: Scale) -> list[str]:
    """Return a grid line for each power of 16 of bytes."""
    bottom = HEIGHT - _BOTTOM
    powers = [power for power in range(0, 60, 4) if x.low - 1e-9 <= power <= x.high + 1e-9]
    return [
        f'<path d="M{x(power):.1f},{_TOP}V{bottom}" stroke="#dddddd"/>'
        f'<text x="{x(power):.1f}" y="{bottom + 18}" text-anchor="middle">{bytes_text(2**power)}</text>'
        for power in powers
    ] + [f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">size</text>']


def _y_axis(y: Scale) -> list[str]:
    """Return a grid line for each power of ten of seconds."""
    powers = range(math.ceil(y.low - 1e-9), math.floor(y.high + 1e-9) + 1)
    return [
        f'<path d="M{_LEFT},{y(power):.1f}H{WIDTH - _RIGHT}" stroke="#dddddd"/>'
        f'<text x="{_LEFT - 8}" y="{y(power) + 4:.1f}" text-anchor="end">{seconds_text(10.0**power)}</text>'
        for power in powers
    ]
