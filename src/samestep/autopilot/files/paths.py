"""Converts paths to text, and finds the paths that all ranks share instead of private copies."""

import multiprocessing.process
import os
import tempfile
from typing import Any

from samestep.base import env

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of `os.open` with which a file may change."""
_FILES_IN_MEMORY = "/dev/shm/"  # noqa: S108 - scripts keep data and checkpoints there


def path_text(path: Any) -> str | None:
    """Return a path as text; None for a descriptor or for a value that is no path."""
    if isinstance(path, int):
        return None
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


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
    """The paths that are not redirected: they are no files, or all processes share them.

    Args:
        more: the prefixes of further paths.
    """

    def __init__(self, *more: str) -> None:
        configured = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
        # The launcher has chosen it for its workers, or multiprocessing makes one when it needs it.
        sockets = multiprocessing.process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]  # noqa: SLF001
        configured.append(sockets)
        self._beginnings: tuple[str, ...] = (
            *("/proc/", "/sys/"),
            f"{tempfile.gettempdir()}/pymp-",  # where multiprocessing binds its sockets
            *(os.path.abspath(one) for one in configured if one),  # compilers read them in other programs
            f"{tempfile.gettempdir()}/torchinductor_",
            os.path.expanduser("~/.triton/"),
            *more,
        )

    def __contains__(self, path: str) -> bool:
        return is_device(path) or path.startswith(self._beginnings)

    def add(self, beginning: str) -> None:
        """Add a prefix of paths that are not redirected."""
        self._beginnings = (*self._beginnings, beginning)
