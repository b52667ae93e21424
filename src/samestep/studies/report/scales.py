"""Maps numbers to coordinates, and chooses round numbers along an axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values ``low .. high`` linearly to coordinates ``start .. stop``."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of `value`."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def span(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """Return the range of the finite `values`, widened if it is empty.

    Args:
        values: numbers; NaN and infinities are ignored.
        zero: whether the range includes 0.
    """
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
class Bin:
    """The mean, least and greatest of neighboring values, at one x."""

    x: float
    mean: float
    low: float
    high: float


def thin(xs: Sequence[float], ys: Sequence[float], *, most: int = 400) -> list[Bin]:
    """Return at most `most` bins of neighboring points, which keep all extremes.

    The x of a bin is that of its last point. Values that are not finite are ignored.
    """
    width = -(-len(xs) // most) or 1
    bins = []
    for start in range(0, len(xs), width):
        values = [y for y in ys[start : start + width] if math.isfinite(y)]
        if values:
            x = xs[min(start + width, len(xs)) - 1]
            bins.append(Bin(x, math.fsum(values) / len(values), min(values), max(values)))
    return bins
