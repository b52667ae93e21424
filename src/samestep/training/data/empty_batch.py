"""Builds an empty batch in the form of the batches that a collate function returns."""

from collections import UserDict
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import UsageError

_WHY = "a short last batch leaves this worker without samples"


def empty_batch(collate: Callable[[list[Any]], Any], sample: Any, *, why: str = _WHY) -> Any:
    """Return the batch of no samples, extrapolated from batches that `collate` returns.

    The batches of 2 and of 4 copies of `sample` are compared, and sizes that grow are extrapolated to 0::

                                    2 samples           4 samples       none
        stacked images              (2, 3, 8, 8)        (4, 3, 8, 8)    (0, 3, 8, 8)
        sequence first              (5, 2)              (5, 4)          (5, 0)
        tuple(zip(*samples))        ((a, a), (b, b))    ...             ((), ())
        offsets of flat samples     [0, 5, 10]          (5,)            [0]
        a count                     2                   4               0
        anything else               "text"              "text"          "text"

    Sizes 2 and 4 are used because some functions squeeze a batch of 1, and others make pairs.

    Raises:
        UsageError: the batch is neither tensors, arrays nor lists, tuples and dicts of them, or nothing in
            it grows with the samples; begins with `why`.
    """
    two, four = (collate([deepcopy(sample) for _ in range(count)]) for count in (2, 4))
    extrapolate = _Extrapolation()
    try:
        empty = extrapolate(two, four)
        if not extrapolate.grows:
            raise _NotExtrapolated(f"a {_name(two)} of equal length for 2 and for 4 samples")
    except _NotExtrapolated as found:
        raise UsageError(
            f"{why}, and an empty batch cannot be built, because the collate function returns {found}. Use "
            "drop_last=True, a batch size whose last batch has a sample for every worker, or a collate "
            "function that returns tensors, arrays, lists, tuples or dicts."
        ) from None
    return empty


class _NotExtrapolated(Exception):  # noqa: N818 - names the fault
    """The return value of a collate function that has no form for an empty batch."""


class _Extrapolation:
    """A linear extrapolation of the sizes in a batch from 2 and 4 samples to none."""

    grows = False
    """Whether any size has grown so far."""

    def __call__(self, two: Any, four: Any) -> Any:
        if type(two) is not type(four):
            raise _NotExtrapolated(f"a {_name(two)} of 2 samples but a {_name(four)} of 4")
        if isinstance(two, Tensor | np.ndarray):
            return self._array(two, four)
        if isinstance(two, list | tuple):
            return self._sequence(two, four)
        if isinstance(two, dict | UserDict) and two.keys() == four.keys():
            changed = copy(two)  # keeps the class and its other attributes
            changed.update({key: self(two[key], four[key]) for key in two})
            return changed
        if isinstance(two, int | np.integer):
            return type(two)(0) if four == 2 * two else two
        if two is four or isinstance(two, str | bytes | float | complex):
            return two
        raise _NotExtrapolated(f"a {_name(two)}")

    def _array(self, two: Any, four: Any) -> Any:
        if isinstance(two, Tensor) and (two.is_nested or two.layout != torch.strided):
            raise _NotExtrapolated("a nested or sparse tensor")
        if two.ndim != four.ndim:
            raise _NotExtrapolated(f"{two.ndim} dimensions for 2 samples but {four.ndim} for 4")
        if two.shape == four.shape:
            doubled = _counts(two) and bool((four == 2 * two).all())
            return two - two if doubled else two
        self.grows = True
        return two[tuple(slice(_at_none(a, b)) for a, b in zip(two.shape, four.shape, strict=True))]

    def _sequence(self, two: Any, four: Any) -> Any:
        if len(two) != len(four):
            self.grows = True
            return two[: _at_none(len(two), len(four))]
        parts = map(self, two, four)
        return type(two)(*parts) if hasattr(two, "_fields") else type(two)(parts)


def _at_none(two: int, four: int) -> int:
    """Return the length for no samples, by linear extrapolation from those for 2 and 4."""
    return max(0, 2 * two - four)


def _counts(array: Any) -> bool:
    """Return whether `array` contains integers, such as the number of samples of each step."""
    if isinstance(array, Tensor):
        return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
    return bool(array.dtype.kind in "iu")


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
