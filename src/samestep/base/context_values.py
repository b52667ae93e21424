"""Sets a context variable for the duration of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def bound(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable of the calling thread in the block; restore its previous value after it."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
