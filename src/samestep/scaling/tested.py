"""How well a model describes the points that it was laid through, in figures and words."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

DESCRIBES = 0.1
"""From which deviation on a model is another than that of the points."""

Model: TypeAlias = Callable[[float], float]


def deviation_of(pairs: Sequence[tuple[float, float]], model: Model, *, parameters: int = 1) -> float | None:
    """Return the root mean square of the relative deviations; None where parameters are as many as points."""
    if len(pairs) <= parameters:
        return None
    return math.sqrt(sum((model(n) / y - 1) ** 2 for n, y in pairs) / len(pairs))


def tested(words: str, deviation: float | None) -> str:
    """Return what a model says, and how far the points are from it."""
    if deviation is None:
        return f"{words}. No point is left to test this."
    apart = ", so it does not describe them" if deviation > DESCRIBES else ""
    return f"{words}. This is {share_text(deviation)} off the points on average{apart}."


def too_few(what: str, found: str) -> str:
    """Return that a model cannot be laid."""
    return f"{what}: not determined, for want of points ({found})."


def share_text(share: float) -> str:
    """Return a share, small ones with a decimal.

    >>> share_text(0.012)
    '1.2 %'
    """
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
