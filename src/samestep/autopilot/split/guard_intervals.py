"""Divides the values of guards into intervals, by the constants that a module may compare them with.

A module may branch on a number that changes in each call, such as a schedule or a count of its calls::

    if self.temperature < 0.3: ...
    if self.calls == self.warm_up: ...

Not each of its values can be checked. The constants in the code, and the numbers among the guards, divide
them into intervals: a value in another interval than the checked ones may take another branch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, TypeAlias

Interval: TypeAlias = Any
"""The interval of a number, or what stands for it where a value is no number."""


class GuardIntervals:
    """The intervals between the constants of one module."""

    def __init__(self, constants: Iterable[Any]) -> None:
        values = set(constants)
        self._numbers = sorted({float(one) for one in values if _is_number(one) and abs(one) < _LARGEST})
        self._texts = {one for one in values if isinstance(one, str)}

    def of(self, value: Any) -> Interval:
        """Return the interval of a guard: equal for values that are compared alike with all constants."""
        if _is_number(value):
            return bisect_left(self._numbers, value), bisect_right(self._numbers, value)
        if isinstance(value, str):
            return value if value in self._texts else str
        if isinstance(value, tuple):
            return tuple(self.of(one) for one in value)
        return value


_LARGEST = 1e30


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers_in(value: Any) -> list[Any]:
    """Return the numbers and texts in a structure of tuples."""
    if isinstance(value, tuple):
        return [number for one in value for number in numbers_in(one)]
    return [value] if _is_number(value) or isinstance(value, str) else []
