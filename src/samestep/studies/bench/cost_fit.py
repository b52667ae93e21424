"""Fits alpha and beta to times at several sizes, and finds the fastest algorithm by size."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

CLEARLY = 0.05
"""The share of time by which an algorithm must beat the fastest one so far."""


@dataclass(frozen=True, slots=True)
class Line:
    """A time of ``alpha + beta * bytes``."""

    alpha: float  # seconds of a call without bytes
    beta: float  # seconds for each byte

    def __call__(self, nbytes: float) -> float:
        """Return the seconds for `nbytes` bytes."""
        return self.alpha + self.beta * nbytes


def fit(times: Mapping[int, float]) -> Line:
    """Return the line with the least sum of relative deviations from `times`, which is robust to outliers.

    The minimum lies on a line through two of the points, or through one point with alpha or beta 0, so all of
    these are tried.

    Args:
        times: seconds by bytes; at least one.
    """
    points = list(times.items())
    through_one = [
        line for nbytes, seconds in points for line in (Line(seconds, 0.0), Line(0.0, seconds / nbytes))
    ]
    through_two = (_through(one, other) for one, other in combinations(points, 2))
    tried = [*through_one, *(line for line in through_two if line.alpha >= 0 and line.beta >= 0)]
    return min(tried, key=lambda line: sum(abs(line(nbytes) / seconds - 1) for nbytes, seconds in points))


def crossovers(times: Mapping[str, Mapping[int, float]]) -> list[tuple[int, str]]:
    """Return the sizes from which on an algorithm is the fastest, ascending.

    An algorithm that is faster by less than `CLEARLY` is ignored, since that can be chance.

    Args:
        times: seconds by bytes, for each algorithm.
    """
    changes: list[tuple[int, str]] = []
    for nbytes in sorted({nbytes for by_size in times.values() for nbytes in by_size}):
        here = {name: by_size[nbytes] for name, by_size in times.items() if nbytes in by_size}
        best = min(here, key=lambda name: here[name])
        holder = changes[-1][1] if changes else None
        if holder not in here or here[best] < here[holder] * (1 - CLEARLY):
            changes.append((nbytes, best))
    return changes


def _through(one: tuple[int, float], other: tuple[int, float]) -> Line:
    (near, soon), (far, late) = sorted((one, other))
    beta = (late - soon) / (far - near)
    return Line(soon - beta * near, beta)
