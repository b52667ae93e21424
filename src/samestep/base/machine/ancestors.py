"""Lists the processes that have started this one, with their environments."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

Ancestors = Callable[[], Iterator[tuple[str, Mapping[str, str]]]]
"""Function that yields an identity and the environment of this process's ancestors, nearest first."""


def ancestors() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the ancestors of this process that belong to the same user, nearest first."""
    import psutil

    with suppress(psutil.Error):  # another user's process, or gone: not this job's launcher
        for process in psutil.Process().parents():
            yield str(process.pid), process.environ()
