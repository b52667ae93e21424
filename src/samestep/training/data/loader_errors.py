"""Passes errors of loader processes as values, because torch adds a traceback to exceptions."""

from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from samestep.base.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """An error of samestep in place of a batch; errors of the user's code keep torch's traceback."""

    error: UsageError


def raise_if_failed(value: T | FailedBatch) -> T:
    """Return `value`, or raise its error if it is a `FailedBatch`."""
    if isinstance(value, FailedBatch):
        raise copy(value.error)  # the original's traceback would keep loader processes alive
    return value
