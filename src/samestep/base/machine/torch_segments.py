"""Frees torch's shared memory of processes that were killed between making a segment and unlinking it."""

import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from samestep.base.machine.process_ids import memory_is_numbered_apart

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
