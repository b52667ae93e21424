"""Checks whether this process can be forked into workers that compute with torch, and prepares the fork.

Its threads, exit handlers and file descriptors have to be those of a fresh process.
"""

import atexit
import ctypes
import multiprocessing.process
import multiprocessing.util
import os
import resource
import sys
import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import driver_is_open
from samestep.hooks import declarations
from samestep.hooks.registry import put

_PAUSE_HARD = 2  # OpenMP's `omp_pause_hard`: release all resources, including the threads
Limit: TypeAlias = tuple[int, int]
_PER_WORKER = 8
"""Descriptors of a worker: its pipe, its pidfd, the file of its stack, for each of two streams a pipe and a
file; one spare."""
_SPARE = 64  # for files that the launcher opens later
_LEAST, _LEAST_PER_WORKER = 24, 4
"""Descriptors without which ranks wait for connections that no process can accept."""


def fork_is_safe() -> bool:
    """Return whether forked children can use torch, devices included.

    A fork is unsafe on macOS, whose system libraries do not survive it; with an open device context, which
    a child can neither use nor close; and with other threads, whose locks would stay locked in the child.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or driver_is_open() or autograd_has_threads():
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    backends = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return not any(backend is not None and backend.is_initialized() for backend in backends)


def autograd_has_threads(tasks: Path = Path("/proc/self/task")) -> bool:
    """Return whether autograd has threads, one per device: torch then refuses a backward in a forked child.

    In torch's build with CUDA, on a machine without GPUs, it starts them too: at the first backward, if a
    compilation came before it.
    """
    for task in tasks.iterdir() if tasks.exists() else ():
        with suppress(OSError):  # a thread that has ended
            if (task / "comm").read_text().startswith("pt_autograd_"):
                return True
    return False


def release_compute_threads(maps: Path = Path("/proc/self/maps")) -> bool:
    """End the idle threads of earlier tensor operations; return whether that succeeded.

    A forked child inherits OpenMP's state of the threads but not the threads, and waits for them
    forever at its first operation. This process starts them again when they are needed.
    """
    for path in sorted(_loaded_files(maps.read_text())):
        name = Path(path).name
        if "omp" not in name or ".so" not in name:
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError:  # replaced or removed since it was loaded
            return False
        pause = getattr(library, "omp_pause_resource_all", None)
        if pause is None or pause(_PAUSE_HARD) != 0:
            return False
    return True


def _loaded_files(maps: str) -> set[str]:
    """Return the paths in a process's memory map: the sixth field of a line, which may contain spaces."""
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    return {field[5].removesuffix(" (deleted)") for field in fields if len(field) == 6 and "/" in field[5]}


def fork() -> int:
    """Fork this process, as `os.fork`."""
    with warnings.catch_warnings():
        # Python 3.12 warns about any other thread; `fork_is_safe` checks those that matter.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def forget_parent() -> None:
    """Clear the parent's exit handlers in a child that is forked from a user's process.

    Otherwise its atexit handlers would run a second time here, and multiprocessing would end its processes.
    `multiprocessing.Process` does the same for its own children.
    """
    atexit._clear()  # noqa: SLF001 - no public spelling for these three
    put(declarations.PARENTS_CHILDREN, set())
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    multiprocessing.util._run_after_forkers()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001


def raise_file_limit(workers: int) -> Limit | None:
    """Raise the soft limit for `workers`, up to the hard one; return the old limit if it was raised.

    Raises:
        UsageError: the hard limit is below what several workers need.
    """
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _LEAST + _LEAST_PER_WORKER * workers
    if workers > 1 and hard != resource.RLIM_INFINITY and hard < least:
        raise UsageError(
            f"a process may open {hard} files here (ulimit -Hn), and {workers} workers need {least}. Raise "
            "the limit, or ask for fewer workers."
        )
    needed = len(os.listdir("/dev/fd")) + _PER_WORKER * workers + _SPARE  # noqa: PTH208 - no files
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return before


def restore_file_limit(limit: Limit | None) -> None:
    """Restore the limit that `raise_file_limit` returned."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def close_files(files: Iterable[int]) -> None:
    """Close those of `files` that are open."""
    for fd in files:
        with suppress(OSError):
            os.close(fd)
