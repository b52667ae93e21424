"""Converts paths to text, and finds the paths that all ranks share instead of private copies."""

import multiprocessing.process
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from samestep.base import env
from samestep.base.owned_folders import temporary_directory

DATABASE_SUFFIXES = ("-journal", "-wal", "-shm")
"""The suffixes of the files that SQLite creates beside a database."""
_FILES_IN_MEMORY = "/dev/shm/"  # noqa: S108 - scripts keep data and checkpoints there


def path_text(path: Any) -> str | None:
    """Return a path as text; None for a descriptor or for a value that is no path."""
    if isinstance(path, int):
        return None
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def os_error(code: int, path: Any, target: Any = None) -> OSError:
    """Return the error that Linux raises for a path, or for two."""
    return OSError(code, os.strerror(code), path, None, target)


def folder_of_descriptor(number: int) -> str:
    """Return the path of a descriptor's folder."""
    return os.readlink(f"/proc/self/fd/{number}")


def is_actual_folder(path: str) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def is_device(path: str) -> bool:
    """Return whether an absolute path names a device."""
    return path.startswith("/dev/") and not path.startswith(_FILES_IN_MEMORY)


class CommonPaths:
    """The paths that are not redirected: they are no files, or all processes share them."""

    def __init__(self, *more: str) -> None:
        configured = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
        # The launcher has chosen it for its workers, or multiprocessing makes one when it needs it.
        sockets = multiprocessing.process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]  # noqa: SLF001
        configured.append(sockets)
        self._beginnings: tuple[str, ...] = (
            *("/proc/", "/sys/"),
            f"{temporary_directory()}/pymp-",  # where multiprocessing binds its sockets
            *(os.path.abspath(one) for one in configured if one),  # compilers read them in other programs
            f"{temporary_directory()}/torchinductor_",
            os.path.expanduser("~/.triton/"),
            *more,
        )

    def __contains__(self, path: str) -> bool:
        return is_device(path) or path.startswith(self._beginnings)

    def add(self, beginning: str) -> None:
        """Add a prefix of paths that are not redirected."""
        self._beginnings = (*self._beginnings, beginning)


def database_path(database: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the path of a SQLite database and its options; None as the path of one in memory."""
    text = path_text(database)
    if text is None or text in ("", ":memory:"):
        return None, ""
    if not kwargs.get("uri", args[6:7] == (True,)) or not text.startswith("file:"):
        return text, ""
    path, _, options = text[len("file:") :].partition("?")
    path = unquote(path)
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    if path in ("", ":memory:") or "mode=memory" in options:
        return None, ""
    return path, options
