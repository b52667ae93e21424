"""Records the few numbers that ranks combine, and recognizes a printed result that is computed from them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from samestep.hooks import verify_declarations
from samestep.hooks.registry import attached_all, wrapping

_MOST = 8
"""Numbers of a tensor that holds results, such as sums and counts; gradients and outputs have more."""
_PERCENT = 100.0


@contextmanager
def combined_recorded(record: Callable[[list[float]], None]) -> Iterator[None]:
    """Call `record` with the numbers that each `all_reduce` and `reduce` of the block returns."""

    def combine(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(tensor, *args, **kwargs)
        if work is None and type(tensor) is Tensor and tensor.numel() <= _MOST and not tensor.is_complex():
            record(tensor.detach().double().flatten().tolist())
        return work

    with attached_all({hook: wrapping(combine) for hook in verify_declarations.REDUCTIONS}):
        yield


def is_computed_from(printed: float, combined: Sequence[float], size: int, digit: float) -> bool:
    """Return whether a result is computed from the numbers that the ranks of one run combine.

    Args:
        printed: the result, in a run whose reference combines nothing since it is a serial script.
        combined: the numbers that its ranks have combined in one evaluation.
        size: number of ranks.
        digit: value of the last printed digit.
    """
    return any(
        abs(scale * one - printed) <= digit for one in _results(combined, size) for scale in (1.0, _PERCENT)
    )


def has_combined(
    pair: tuple[float, float], combined: tuple[Sequence[float], Sequence[float]], size: int, digit: float
) -> bool:
    """Return whether two runs compute a result in the same way from the numbers that their ranks combine.

    Args:
        pair: the printed result of the reference and of a run.
        combined: the numbers that the ranks of each have combined in one evaluation.
        size: number of ranks of the run.
        digit: value of the last printed digit.
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
