"""Recognizes a printed result that is computed from the few numbers that the ranks of a run combine."""

from collections.abc import Iterator, Sequence

_PERCENT = 100.0


def is_computed_from(printed: float, combined: Sequence[float], size: int, digit: float) -> bool:
    """Return whether a result is computed from the numbers that all ranks have combined in one evaluation.

    The reference of the run combines nothing, since it is a serial script. `digit` is the value of the last
    printed digit.
    """
    return any(
        abs(scale * one - printed) <= digit for one in _results(combined, size) for scale in (1.0, _PERCENT)
    )


def has_combined(
    pair: tuple[float, float], combined: tuple[Sequence[float], Sequence[float]], size: int, digit: float
) -> bool:
    """Return whether two runs compute a printed result in the same way from the numbers that ranks combine.

    The pairs are of the reference, which has one rank, and of a run with `size` ranks; `digit` is the value
    of the last printed digit.
    """
    results = zip(_results(combined[0], 1), _results(combined[1], size), strict=False)
    return any(
        all(abs(scale * one - printed) <= digit for one, printed in zip(both, pair, strict=True))
        for both in results
        for scale in (1.0, _PERCENT)
    )


def _results(combined: Sequence[float], size: int) -> Iterator[float]:
    """Yield each number, its mean over the ranks, and its quotient by each other number."""
    for number in combined:
        yield from (number, number / size)
        yield from (number / other if other else float("nan") for other in combined)
