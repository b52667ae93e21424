"""Ends orphaned processes: those that stopped workers have started, and all if the launcher is killed.

The kernel kills a worker whose launcher is gone. For the processes that workers fork there is a `Lifeline`: a
pipe whose write end only the launcher holds. Each such process opens the read end itself and makes the kernel
send it SIGKILL when the write end is closed. This also works if the workers are killed at the same moment.
Excluded are a process in a separate session, which is meant to outlive the run, and one that has executed
another program.

Linux only; elsewhere daemonic workers of a DataLoader detect themselves that their parent is gone.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from samestep.base.folders import DESCENDANTS, free_segments

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # options of prctl, in Linux's prctl.h
_PIDFD_GETFD = 438  # the number of a system call, the same on all architectures
_F_SETSIG = 10  # a command of fcntl, which Python does not name
_GRACE_S = 3.0  # seconds that orphans may take to end, before they are killed
_CLOCK_SLACK_S = 2.0  # the start time of a process has a resolution of a second
_adopters: list[int] = []
"""Process that adopts orphans: all its descendants are its workers'. A fork of it adopts none."""
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_OPEN = os.open  # the system's function: a replicated script has replaced it
_LONGEST_FOLDER = 88
"""Maximum length: multiprocessing creates sockets in the folder, and the system limits their paths to 107."""


def adopt_orphans() -> None:
    """Make this process the parent of its workers' orphaned processes, so that it can find and end them."""
    if _LIBC is not None and _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        _adopters[:] = [os.getpid()]


def reap(*, but: Set[int]) -> None:
    """Reap adopted orphans that have ended, so that they do not remain as zombies.

    The children in `but` are left for other code that waits for them.
    """
    while os.getpid() in _adopters:
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

    descendants: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error):
            descendants += psutil.Process(pid).children(recursive=True)
    return descendants


def end_all(started: "list[psutil.Process]", *, ended: Set[int]) -> None:
    """End the orphaned processes of workers, and free their shared memory.

    `started` are the descendants of the workers at the time when these were stopped.

    multiprocessing's resource trackers ignore SIGTERM and end by themselves, after freeing the remaining
    resources of their users: they are waited for, and killed last.
    """
    import psutil

    left = {process.pid: process for process in started}
    if os.getpid() in _adopters:
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


@dataclass(slots=True)
class Lifeline:
    """Launcher's side of the pipe; processes below its workers are recorded in `folder`, if any."""

    folder: Path | None
    read: int = field(default=-1, init=False)
    write: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.read, self.write = os.pipe()

    @property
    def files(self) -> set[int]:
        """Open descriptors of the pipe."""
        return {file for file in (self.read, self.write) if file >= 0}

    def hold(self) -> None:
        """Make all processes that this worker forks end with the launcher."""
        os.close(self.write)
        end = _WorkersEnd(self.read, file_identity(self.read), os.getsid(0), self._record)
        if _LIBC is not None:
            os.register_at_fork(after_in_child=end.arm)
        processes = sys.modules.get("multiprocessing.process")
        if processes is None:
            return
        # Each worker has its own folder for multiprocessing's sockets, and none that its ancestors have made:
        # ranks with equal seeds draw equal names for them. Child processes inherit it.
        configuration = processes.current_process()._config  # noqa: SLF001 - no public spelling
        configuration.pop("tempdir", None)
        # Without one, multiprocessing makes a folder in each process, which remains if that is killed.
        if self.folder is not None:
            sockets = self.folder / f"mp-{os.getpid()}"
            with suppress(OSError):  # the temporary directory is full, which must not end the worker
                if len(str(sockets)) > _LONGEST_FOLDER:
                    return
                sockets.mkdir(mode=0o700)
                configuration["tempdir"] = str(sockets)

    def close(self) -> None:
        """Close the pipe once the workers have ended by themselves; the processes they left may continue."""
        if self.write < 0:
            return
        for pid in _numbers(self._record):
            _disarm(pid, file_identity(self.read))
        os.close(self.write)
        os.close(self.read)
        self.read = self.write = -1

    @property
    def _record(self) -> Path | None:
        return None if self.folder is None else self.folder / DESCENDANTS


@dataclass(frozen=True, slots=True)
class _WorkersEnd:
    """Worker's side of the pipe; the worker's program may close descriptors that it has not opened."""

    read: int
    pipe: tuple[int, int]
    session: int
    record: Path | None

    def arm(self) -> None:
        """Make this process, forked by the worker or below it, end with the launcher."""
        with suppress(OSError):
            if file_identity(self.read) != self.pipe or os.getsid(0) != self.session:
                return
            end = _OPEN(f"/proc/self/fd/{self.read}", os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(end, _F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            poll = select.poll()
            poll.register(end, 0)
            if poll.poll(0):  # the launcher was killed before
                os.kill(os.getpid(), signal.SIGKILL)
            if self.record is None:
                return
            record = _OPEN(self.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(record, b"%d\n" % os.getpid())
            os.close(record)


def _disarm(pid: int, pipe: tuple[int, int]) -> None:
    """Allow a process to outlive the launcher, as it would outlive its worker without a launcher."""
    if _LIBC is None:
        return
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                status = entry.stat()
                if (status.st_dev, status.st_ino) == pipe:
                    file = _LIBC.syscall(_PIDFD_GETFD, process, int(entry.name), 0)
                    if file >= 0:
                        fcntl.fcntl(file, fcntl.F_SETFL, os.O_NONBLOCK)
                        os.close(file)
        finally:
            os.close(process)


def _numbers(path: Path | None) -> set[int]:
    if path is None:
        return set()
    with suppress(OSError, ValueError):
        return {int(line) for line in path.read_text().splitlines()}
    return set()


def file_identity(file: int) -> tuple[int, int]:
    """Return device and inode of an open file: a descriptor can be closed, and its number used again."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino
