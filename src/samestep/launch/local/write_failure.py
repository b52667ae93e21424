"""Finds the file that a program could not write, and the reason, if its error does not state both."""

import errno
import io
import os
import traceback
from contextlib import suppress
from types import FrameType

_REASONS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EFBIG})
_OF_TORCH = ("inline_container", "PytorchStreamWriter", "PyTorchStreamWriter")
"""Parts of torch.save's error for a failed write, which has neither the file nor the reason."""


def write_failure(error: BaseException) -> str:
    """Return ``cannot write to PATH: REASON`` if a failed write caused the error; else an empty text."""
    chain = _chain(error)
    for one in chain:
        if isinstance(one, OSError) and one.errno in _REASONS:
            named = os.fsdecode(one.filename) if isinstance(one.filename, str | bytes) else ""
            return _text(named or _path(chain), os.strerror(one.errno))
        if isinstance(one, RuntimeError) and any(word in str(one) for word in _OF_TORCH):
            path = _path(chain)
            return _text(path, _reason(path)) if path and _reason(path) else ""
    return ""


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the origin first."""
    found = [error]
    while (before := found[-1].__cause__ or found[-1].__context__) is not None and before not in found:
        found.append(before)
    return found[::-1]


def _text(path: str, reason: str) -> str:
    return f"cannot write to {path or 'a file'}: {reason}"


def _path(chain: list[BaseException]) -> str:
    """Return the file that was being written, from the frames of the errors, the innermost first."""
    for error in chain:
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            if path := _in_frame(frame):
                return path
    return ""


def _in_frame(frame: FrameType) -> str:
    values = dict(frame.f_locals)
    if frame.f_globals.get("__name__") == "torch.serialization" and "f" in values:
        with suppress(TypeError):
            return os.fsdecode(values["f"])
    for value in values.values():
        # The file may be closed already.
        if isinstance(value, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom | io.FileIO):
            name, mode = getattr(value, "name", None), getattr(value, "mode", "r")
            if isinstance(name, str) and set(mode) & set("wax+") and not name.startswith("<"):
                return name
    return ""


def _reason(path: str) -> str:
    """Return why the file system of a path accepts no more data; empty if the reason is not visible now."""
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - links stay as they are
    with suppress(OSError):
        found = os.statvfs(folder)
        if found.f_flag & os.ST_RDONLY:
            return os.strerror(errno.EROFS)
        if found.f_bavail * found.f_frsize < 1 << 20:
            return os.strerror(errno.ENOSPC)
        if not os.access(folder, os.W_OK):
            return os.strerror(errno.EACCES)
    return ""
