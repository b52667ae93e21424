"""Maps numbers to coordinates, and chooses round numbers along an axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
