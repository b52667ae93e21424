"""Excludes the other threads and processes of a rank from a block."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing, in a block."""
    with open(path, "ab") as file:  # opened anew, since a lock belongs to the open file
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # also where another thread has forked meanwhile: the child has the open file, too
            fcntl.flock(file, fcntl.LOCK_UN)
