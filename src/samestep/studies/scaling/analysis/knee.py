"""Finds the knee: the number of workers beyond which more of them cost more than they bring."""

from collections.abc import Sequence

from samestep.studies.scaling.analysis.study import Point


def knee(points: Sequence[Point]) -> int | None:
    """Return the workers with the highest speedup times efficiency; None if these are the most workers.

    Beyond, a further worker costs a larger share of efficiency than it brings of speedup (Eager, Zahorjan and
    Lazowska, "Speedup versus efficiency in parallel systems", 1989). By Amdahl that is at (1 - s) / s.

    Args:
        points: of one mode and variant, by workers; an oversubscribed baseline has no knee.
    """
    if points and points[0].oversubscribed:
        return None
    usable = [point for point in points if not point.oversubscribed]
    best = max(usable, key=lambda point: point.speedup * point.efficiency, default=None)
    return None if best is None or best is usable[-1] else best.workers
