"""Maps memory that all ranks of one host share, and that the kernel frees with the last of them.

Hostnames do not prove that ranks share a host: containers of one host have several, and containers of several
hosts can have the same. So rank 0 makes a file without a name in the shared-memory file system, and sends its
process id, the file descriptor and random content; a rank that reads this content there shares the memory.
When the last process ends, however it ends, the memory is freed.
"""

import errno
import mmap
import os
import secrets
from pathlib import Path

from samestep.base.units import bytes_text
from samestep.ranks.world.protocol import World

FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - shared memory is what is wanted
_MARK = 32


class NoSharedMemory(Exception):  # noqa: N818 - names the state
    """The ranks have no shared memory; the message has the reason."""


def segment(world: World, size: int) -> mmap.mmap:
    """Return `size` bytes of memory that all ranks share, filled with zeros.

    Args:
        world: the ranks; all of them call this.
        size: in bytes; all pages are allocated now, so that a later write cannot fail.

    Raises:
        NoSharedMemory: the ranks cannot share memory; on all ranks, with the same reason.
    """
    file, offer = _offer(size) if world.place.is_main else (None, "")
    try:
        offer = world.broadcast_object(offer)
        if isinstance(offer, str):
            raise NoSharedMemory(offer)
        mapped = mmap.mmap(file, size) if file is not None else _map(*offer, size)
        reached = world.all_gather_objects(mapped is not None)
    finally:
        if file is not None:
            os.close(file)
    if mapped is None or not all(reached):
        raise NoSharedMemory(
            f"rank {reached.index(False)} has no access to the file of rank 0 in {FILE_SYSTEM}, as in "
            "separate containers"
        )
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


def _offer(size: int) -> tuple[int | None, tuple[Path, bytes] | str]:
    """Return a new file with its path and content; or None and the reason."""
    try:
        file = _make(size)
    except OSError as error:
        return None, _why_not(size, error)
    return file, (_path(file), os.pread(file, _MARK, 0))


def _make(size: int) -> int:
    """Make the file; return its descriptor."""
    file = os.open(FILE_SYSTEM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, secrets.token_bytes(_MARK), 0)
    except OSError:
        os.close(file)
        raise
    return file


def _why_not(size: int, error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"{FILE_SYSTEM}: {error.strerror}"
    held = os.statvfs(FILE_SYSTEM)
    free, total = (bytes_text(blocks * held.f_frsize) for blocks in (held.f_bavail, held.f_blocks))
    return f"{FILE_SYSTEM} has {free} free of {total}, and {bytes_text(size)} are needed"


def _path(file: int) -> Path:
    """Return the path under which processes of this host and PID namespace open this process's file."""
    return Path(f"/proc/{os.getpid()}/fd/{file}")


def _map(path: Path, mark: bytes, size: int) -> mmap.mmap | None:
    try:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None
    return mapped if mapped[:_MARK] == mark else None
