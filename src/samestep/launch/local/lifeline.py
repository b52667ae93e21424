"""Ends the processes that workers have forked, if the launcher is killed.

Only the launcher holds the write end of a pipe. Each process that is forked below a worker opens the read
end itself and makes the kernel send it SIGKILL when the write end is closed. This also works if the
workers are killed at the same moment. Linux only; elsewhere the workers of a DataLoader detect the end
themselves.

Excluded are a process in a separate session, which is meant to outlive the run, and one that has executed
another program.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from samestep.base.owned_folders import DESCENDANTS

_PIDFD_GETFD = 438
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_F_SETSIG = 10
_OPEN = os.open
"""The system's function: a replicated script has replaced it."""
_LONGEST_FOLDER = 80
"""Maximum length: multiprocessing creates sockets in the folder, and the system limits their paths to 107."""


@dataclass(slots=True)
class Lifeline:
    """Launcher's side of the pipe.

    Args:
        folder: folder of this launcher, for the record of processes below its workers; None for no record.
    """

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
        held = _Held(self.read, _identity(self.read), os.getsid(0), self._noted)
        if _LIBC is not None:
            os.register_at_fork(after_in_child=held.arm)
        processes = sys.modules.get("multiprocessing.process")
        if self.folder is not None and processes is not None and len(str(self.folder)) <= _LONGEST_FOLDER:
            # multiprocessing's own folder would remain if a process is killed. Child processes inherit this.
            processes.current_process()._config["tempdir"] = str(self.folder)  # noqa: SLF001

    def close(self) -> None:
        """Close the pipe once the workers have ended by themselves; the processes they left may continue."""
        if self.write < 0:
            return
        for pid in _numbers(self._noted):
            _disarm(pid, _identity(self.read))
        os.close(self.write)
        os.close(self.read)
        self.read = self.write = -1

    @property
    def _noted(self) -> Path | None:
        return None if self.folder is None else self.folder / DESCENDANTS


@dataclass(frozen=True, slots=True)
class _Held:
    """Worker's side of the pipe; the worker's program may close descriptors that it has not opened."""

    read: int
    pipe: tuple[int, int]
    session: int
    noted: Path | None

    def arm(self) -> None:
        """Make this process, forked by the worker or below it, end with the launcher."""
        with suppress(OSError):
            if _identity(self.read) != self.pipe or os.getsid(0) != self.session:
                return
            own = _OPEN(f"/proc/self/fd/{self.read}", os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            poll = select.poll()
            poll.register(own, 0)
            if poll.poll(0):  # the launcher was killed before
                os.kill(os.getpid(), signal.SIGKILL)
            if self.noted is None:
                return
            noted = _OPEN(self.noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(noted, b"%d\n" % os.getpid())
            os.close(noted)


def _disarm(pid: int, pipe: tuple[int, int]) -> None:
    """Allow a process to outlive the launcher, as it would outlive its worker without a launcher."""
    if _LIBC is None:
        return
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                found = entry.stat()
                if (found.st_dev, found.st_ino) == pipe:
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


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
