"""No process is left behind: what stopped workers have started ends with them, and they with their launcher.

Linux only; elsewhere daemonic workers of a DataLoader notice by themselves that their parent is gone.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samestep.base.segments import free_segments

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 3.0
# When a process was started is known to the second.
_CLOCK_SLACK_S = 2.0

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass
class _Adopted:
    """Which process takes in orphans: all its descendants are its workers'. Not so for one forked from it."""

    by: int | None = None


_ADOPTED = _Adopted()


def adopt_orphans() -> None:
    """Become the parent of whatever a worker leaves behind, so that it can be found and ended."""
    if _LIBC is not None:
        _ADOPTED.by = os.getpid() if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 else None


def reap(*, but: Set[int]) -> None:
    """Take note of the ends of orphans that were adopted, so that they do not stay as zombies.

    Args:
        but: children whose ends somebody else waits for.
    """
    while _ADOPTED.by == os.getpid():
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in but:
            return
        os.waitpid(ended.si_pid, 0)


def die_with_parent(parent: int) -> None:
    """In a forked child: have the kernel kill this process when the thread that forked it is gone."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(128 + signal.SIGKILL)


def family(pids: Set[int]) -> "list[psutil.Process]":
    """Return what the processes `pids` have started, directly or not."""
    import psutil

    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error):
            found += psutil.Process(pid).children(recursive=True)
    return found


def end_all(started: "list[psutil.Process]", *, ended: Set[int]) -> None:
    """End the processes that workers left behind, and free their shared memory.

    multiprocessing's resource trackers ignore SIGTERM and end by themselves, after freeing what their
    users have left: they are waited for, and killed last.

    Args:
        started: what the workers had started when they were stopped.
        ended: the workers themselves, which are gone.
    """
    import psutil

    left = {process.pid: process for process in started}
    if _ADOPTED.by == os.getpid():
        left |= {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in left.values():
        with suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(left.values(), timeout=_GRACE_S)
    for process in stubborn:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=_GRACE_S)
    free_segments(ended | left.keys(), since_s=psutil.Process().create_time() - _CLOCK_SLACK_S)
