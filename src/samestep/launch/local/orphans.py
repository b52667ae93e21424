"""Ends orphaned processes: those that stopped workers have started, and workers whose launcher is gone.

Linux only; elsewhere daemonic workers of a DataLoader detect themselves that their parent is gone.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samestep.base.machine.torch_segments import free_segments

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 3.0
# The start time of a process has a resolution of a second.
_CLOCK_SLACK_S = 2.0

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass
class _Adopted:
    """Process that adopts orphans: all its descendants are its workers'. A fork of it adopts none."""

    by: int | None = None


_ADOPTED = _Adopted()


def adopt_orphans() -> None:
    """Make this process the parent of its workers' orphaned processes, so that it can find and end them."""
    if _LIBC is not None:
        _ADOPTED.by = os.getpid() if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 else None


def reap(*, but: Set[int]) -> None:
    """Reap adopted orphans that have ended, so that they do not remain as zombies.

    Args:
        but: children that other code waits for.
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
    """Make the kernel kill this forked child when the thread that forked it is gone."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(128 + signal.SIGKILL)


def family(pids: Set[int]) -> "list[psutil.Process]":
    """Return the descendants of the processes `pids`."""
    import psutil

    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error):
            found += psutil.Process(pid).children(recursive=True)
    return found


def end_all(started: "list[psutil.Process]", *, ended: Set[int]) -> None:
    """End the orphaned processes of workers, and free their shared memory.

    multiprocessing's resource trackers ignore SIGTERM and end by themselves, after freeing the remaining
    resources of their users: they are waited for, and killed last.

    Args:
        started: descendants of the workers at the time when these were stopped.
        ended: process IDs of the workers, which have ended.
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
