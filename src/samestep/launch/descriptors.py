"""File descriptors: enough of them, the standard ones never anything else, and none handed on by accident."""

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

Limit: TypeAlias = tuple[int, int]

_PER_WORKER = 7
"""Its pipe, its pidfd, and for each of two streams a pipe and a file; one to spare."""
_SPARE = 64


def ensure_standard() -> None:
    """Open what is closed of stdin, stdout and stderr on nothing.

    Otherwise the next pipe would be one of them, and workers would print into it.
    """
    for fd in range(3):
        if not _is_open(fd):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free


def make_room(workers: int) -> Limit | None:
    """Raise the soft limit to what `workers` need, if the hard one allows; return what it was if it rose."""
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + _PER_WORKER * workers + _SPARE  # noqa: PTH208 - no files
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return before


def restore(limit: Limit | None) -> None:
    """Take back what `make_room` did."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def close(files: Iterable[int]) -> None:
    """Close those of `files` that are open."""
    for fd in files:
        with suppress(OSError):
            os.close(fd)
