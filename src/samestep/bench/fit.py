"""What follows from figures at several sizes: alpha and beta, and which algorithm wins from where on."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

CLEARLY = 0.05
"""By how much of its time an algorithm has to beat the one that won so far."""


@dataclass(frozen=True, slots=True)
class Line:
    """A time of ``alpha + beta * bytes``.

    Args:
        alpha: seconds that a call takes, however small.
        beta: seconds for each byte.
    """

    alpha: float
    beta: float

    def __call__(self, nbytes: float) -> float:
        """Return the seconds that so many bytes take."""
        return self.alpha + self.beta * nbytes


def fit(times: Mapping[int, float]) -> Line:
    """Return the line that comes closest to `times`, each by its share; outliers do not draw it to them.

    The sum of relative deviations is least on a line through two of the points, or through one with alpha or
    beta 0: so all of them are tried.

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
    """Return from which size on which algorithm is the fastest, ascending.

    An algorithm that is faster by less than `CLEARLY` does not take over: that may be chance.

    Args:
        times: seconds by bytes, for each algorithm.
    """
    turns: list[tuple[int, str]] = []
    for nbytes in sorted({nbytes for by_size in times.values() for nbytes in by_size}):
        here = {name: by_size[nbytes] for name, by_size in times.items() if nbytes in by_size}
        best = min(here, key=lambda name: here[name])
        holder = turns[-1][1] if turns else None
        if holder not in here or here[best] < here[holder] * (1 - CLEARLY):
            turns.append((nbytes, best))
    return turns


def _through(one: tuple[int, float], other: tuple[int, float]) -> Line:
    (near, soon), (far, late) = sorted((one, other))
    beta = (late - soon) / (far - near)
    return Line(soon - beta * near, beta)
