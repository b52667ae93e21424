"""Prevents calls that are computed for a comparison from changing files, such as a log."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from samestep.autopilot.files.paths import WRITE_FLAGS, is_device

_is_comparing: ContextVar[bool] = ContextVar("samestep_comparing", default=False)
_READ = frozenset(
    [
        *("inspected", "link_inspected", "listed", "scanned", "entered", "current", "current_bytes"),
        *("second_read", "first_read", "mapped", "temporary_made", "temporary_opened"),
    ]
)
"""Methods in the table of `file_calls` that do not change the script's files."""


class WritesFileError(Exception):
    """A module changes a file when it is called."""


@contextmanager
def changing_no_files() -> Iterator[None]:
    """Make it an error that the calling thread changes a file through `file_calls`.

    Raises:
        WritesFileError: the thread was about to change a file.
    """
    token = _is_comparing.set(True)
    try:
        yield
    finally:
        _is_comparing.reset(token)


def refuse_change(method: str, arguments: Sequence[Any]) -> None:
    """Raise `WritesFileError` if a redirected function is about to change a file within a comparison.

    Args:
        method: the method of the handler to which the function is redirected.
        arguments: the arguments of the function.
    """
    if not _is_comparing.get() or method in _READ:
        return
    second = arguments[1] if len(arguments) > 1 else None
    if method == "file_io":
        if second is None or not set(str(second)) & set("wax+") or _is_no_file(arguments[0]):
            return
    elif method == "opened_low" and isinstance(second, int) and not second & WRITE_FLAGS:
        return
    raise WritesFileError


def _is_no_file(path: Any) -> bool:
    return isinstance(path, int) or is_device(os.fsdecode(path))
