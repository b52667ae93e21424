"""Manages file descriptors: raises their limit, keeps the standard ones open, and closes inherited ones."""

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

Limit: TypeAlias = tuple[int, int]

_PER_WORKER = 7
"""Descriptors of a worker: its pipe, its pidfd, and for each of two streams a pipe and a file; one spare."""
_SPARE = 64


def ensure_standard() -> None:
    """Open on /dev/null those of stdin, stdout and stderr that are closed.

    Otherwise the next pipe would get one of their numbers, and workers would print into it.
    """
    for fd in range(3):
        if not _is_open(fd):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def make_room(workers: int) -> Limit | None:
    """Raise the soft limit for `workers`, up to the hard one; return the old limit if it was raised."""
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + _PER_WORKER * workers + _SPARE  # noqa: PTH208 - no files
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return before


def restore(limit: Limit | None) -> None:
    """Restore the limit that `make_room` returned."""
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
