"""An error of a loader process as a value: as an exception, torch puts its traceback into the message."""

from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from samestep.base.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failed:
    """Comes in the place of a batch that could not be made; only what samestep itself says travels so.

    An error of the user's code keeps the traceback that torch gives it.
    """

    error: UsageError


def unless_failed(value: T | Failed) -> T:
    """Return `value`, or raise the error that came in its place."""
    if isinstance(value, Failed):
        raise copy(value.error)  # itself it would hold those who hold it, and with them loader processes
    return value
