"""Rates how well a fitted model describes its points, as a number and in words."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

DESCRIBES = 0.1
"""The largest deviation at which a model describes its points."""

Model: TypeAlias = Callable[[float], float]


def deviation_of(pairs: Sequence[tuple[float, float]], model: Model, *, parameters: int = 1) -> float | None:
    """Return the root mean square of the relative deviations; None for no more points than parameters."""
    if len(pairs) <= parameters:
        return None
    return math.sqrt(sum((model(n) / y - 1) ** 2 for n, y in pairs) / len(pairs))


def tested(words: str, deviation: float | None) -> str:
    """Return the result of a model with the deviation of the points from it."""
    if deviation is None:
        return f"{words}. No further point tests this."
    apart = ", so the model does not describe them" if deviation > DESCRIBES else ""
    return f"{words}. The points deviate by {share_text(deviation)} on average{apart}."


def share_text(share: float) -> str:
    """Return a share as a percentage, a small one with a decimal.

    >>> share_text(0.012)
    '1.2 %'
    """
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
