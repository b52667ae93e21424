"""Paths as scripts give them: made absolute, and those that no rank has a private copy of."""

import os
import tempfile
from typing import Any

from samestep.base import env


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


def common_paths() -> tuple[str, ...]:
    """Return the beginnings of paths that are no files, or that all processes use together."""
    configured = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    return (
        *("/dev/", "/proc/", "/sys/"),
        f"{tempfile.gettempdir()}/pymp-",  # where multiprocessing binds its sockets
        *(os.path.abspath(one) for one in configured if one),  # compilers look there with programs
        f"{tempfile.gettempdir()}/torchinductor_",
        os.path.expanduser("~/.triton/"),
    )
