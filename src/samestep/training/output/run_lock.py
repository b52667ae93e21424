"""Locks a run folder, so that no second process writes to it.

Rank 0 holds a lock on ``.samestep-lock`` in the run folder during all its writes. The system releases it when
the process ends, however it ends. The file contains the host and process id of the holder.
"""

import errno
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

from samestep.base.documents import parse_json
from samestep.base.errors import UsageError
from samestep.base.polling import polls
from samestep.base.regular_files import descriptor, kind_of, read_text

LOCK_FILE = ".samestep-lock"
RESTART_S = 30.0
"""Seconds that a restarted rank 0 waits for the previous one, possibly on another node, to end."""
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_POLL_S = 0.1
_MOST = 4096
_held: set[int] = set()


def _close_in_child() -> None:
    """Close the locks in a forked process, so that an orphaned loading process holds none."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """The lock on a run folder; used on rank 0.

    The folder must exist when `take` is called, which waits `wait_s` for another holder.
    """

    def __init__(self, folder: Path, *, wait_s: float = 0.0) -> None:
        self._path = folder / LOCK_FILE
        self._wait_s = wait_s
        self._handle: int | None = None

    def take(self) -> str | None:
        """Take the lock.

        Returns:
            a warning if the file system has no locks; None if the lock is held.

        Raises:
            UsageError: another process holds it, or it cannot be opened.
        """
        # Read-only, so that an administrator can remount the disk read-only during the run.
        handle = self._open(os.O_RDONLY)
        failure = _lock(handle)
        if failure is not None and failure.errno == errno.EBADF:  # NFS locks only what is open for writing
            os.close(handle)
            handle = self._open(os.O_RDWR)
        try:
            locked = self._locked(handle)
            self._name_holder()
        except BaseException:
            os.close(handle)
            raise
        _held.add(handle)
        self._handle = handle
        if locked:
            return None
        return f"{self._path.parent} is on a file system without locks: start no second run in it"

    def close(self) -> None:
        """Release the lock, if it is held."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _held.discard(handle)
            os.close(handle)

    def _open(self, access: int) -> int:
        flags = access | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be opened: {error.strerror}. Move it away.") from None
        if (kind := kind_of(os.fstat(handle).st_mode)) is not None:
            os.close(handle)
            raise UsageError(f"{self._path} is {kind}, not a file. Move it away.")
        return handle

    def _locked(self, handle: int) -> bool:
        """Lock an open file; return whether the file system supports locks."""
        for _ in polls(self._wait_s, least_s=_POLL_S):
            failure = _lock(handle)
            if failure is None or failure.errno in _WITHOUT_LOCKS:
                return failure is None
            if not isinstance(failure, BlockingIOError):
                raise UsageError(f"{self._path} cannot be locked: {failure.strerror}.")
        raise UsageError(self._held_by())

    def _name_holder(self) -> None:
        text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n"
        try:
            with descriptor(self._path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW) as handle:
                os.write(handle, text)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}.") from None

    def _held_by(self) -> str:
        holder = self._holder()
        return (
            f"{self._path.parent} is in use: process {holder.get('pid', 'unknown')} on "
            f"{holder.get('host', 'an unknown host')} writes to it. Wait for its end or choose another "
            f"folder; if that process no longer exists, delete {self._path}."
        )

    def _holder(self) -> dict[str, Any]:
        try:
            found = parse_json(read_text(self._path, most=_MOST))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _lock(handle: int) -> OSError | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None
