"""Frees torch's shared memory of processes that were killed between making a segment and unlinking it.

torch names its shared memory after the id that the process has in its own container. Containers have
pid namespaces of their own, and can share memory with each other and with the host: several processes
of a host can have one id.
"""

import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from samestep.base.machine.kernel_files import name_space

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's own


def free_segments(pids: Set[int], *, since_s: float) -> None:
    """Remove torch's segments of dead processes.

    Args:
        pids: their process ids, which earlier processes or those of other containers can share.
        since_s: earliest start of these processes, in seconds since the epoch; older segments are kept.
    """
    if not pids or memory_is_numbered_apart():
        return
    for pid in pids:
        for segment in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                made = segment.lstat()
                if made.st_uid == os.getuid() and made.st_ctime >= since_s:
                    segment.unlink()


# The kernel's fixed ids of the host's pid and IPC namespaces.
_HOSTS_PID = "pid:[4026531836]"
_HOSTS_IPC = "ipc:[4026531839]"


def memory_is_numbered_apart() -> bool:
    """Return whether this container shares memory, but not process ids, with the host (``--ipc=host``)."""
    return name_space("ipc") == _HOSTS_IPC and name_space("pid") != _HOSTS_PID
