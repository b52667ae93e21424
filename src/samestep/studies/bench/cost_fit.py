"""Fits alpha and beta to times at several sizes, and finds the fastest algorithms by size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from samestep.studies.bench.figures import Row, fastest

CLEARLY = 0.05
"""The share of time by which an algorithm must beat the fastest ones so far."""


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


def crossovers(rows: Sequence[Row]) -> list[tuple[int, list[str]]]:
    """Return the sizes from which on other algorithms are the fastest, ascending, with their names.

    Of several names none is measured to be slower than another algorithm at any size up to the next one; the
    first is the fastest at the first size. Neither overlapping quartiles nor a median that is less by a share
    below `CLEARLY` are a difference, since that can be chance.
    """
    medians = {(row.bytes, row.algorithm): row.median_s for row in rows}
    changes: list[tuple[int, list[str]]] = []
    for nbytes, best in fastest(rows).items():
        limit = medians[nbytes, best[0]] / (1 - CLEARLY)
        held = changes[-1][1] if changes else []
        kept = [name for name in held if name in best or medians.get((nbytes, name), inf) <= limit]
        if kept:
            changes[-1] = (changes[-1][0], kept)
        else:
            changes.append((nbytes, best))
    return changes


def _through(one: tuple[int, float], other: tuple[int, float]) -> Line:
    (near, soon), (far, late) = sorted((one, other))
    beta = (late - soon) / (far - near)
    return Line(soon - beta * near, beta)
