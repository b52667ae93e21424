"""Paths as scripts give them: made absolute, and those that no rank has a private copy of."""

import multiprocessing.process
import os
import tempfile
from typing import Any

from samestep.base import env

_FILES_IN_MEMORY = "/dev/shm/"  # noqa: S108 - scripts keep data and checkpoints there


def path_text(path: Any) -> str | None:
    """Return a path as text; None for a descriptor or for what is no path."""
    if isinstance(path, int):
        return None
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def folder_of_descriptor(number: int) -> str:
    """Return the path of the folder that a descriptor has open."""
    return os.readlink(f"/proc/self/fd/{number}")


class CommonPaths:
    """Paths that are no files, or that all processes use together: these stay as they are.

    Args:
        more: beginnings of further ones.
    """

    def __init__(self, *more: str) -> None:
        configured = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
        # The launcher has chosen it for its workers, or multiprocessing makes one when it needs it.
        sockets = multiprocessing.process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]  # noqa: SLF001
        configured.append(sockets)
        self._beginnings: tuple[str, ...] = (
            *("/proc/", "/sys/"),
            f"{tempfile.gettempdir()}/pymp-",  # where multiprocessing binds its sockets
            *(os.path.abspath(one) for one in configured if one),  # compilers look there with programs
            f"{tempfile.gettempdir()}/torchinductor_",
            os.path.expanduser("~/.triton/"),
            *more,
        )

    def __contains__(self, path: str) -> bool:
        is_device = path.startswith("/dev/") and not path.startswith(_FILES_IN_MEMORY)
        return is_device or path.startswith(self._beginnings)

    def add(self, beginning: str) -> None:
        """Leave another path as it is, with all that is below it."""
        self._beginnings = (*self._beginnings, beginning)
