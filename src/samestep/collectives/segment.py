"""A piece of memory that all ranks of one host see, and that goes with the last of them.

Whether ranks share a host is not asked but tried: hostnames lie (containers of one host have several, and
containers of several hosts may have one). Rank 0 makes a file without a name in the shared-memory file system
and tells under which number its process has it open, and what stands in it; who finds that there shares it.
So the memory lives as long as somebody has it, and no longer, however and whenever they end.
"""

import errno
import mmap
import os
import secrets
from pathlib import Path

from samestep.base.units import bytes_text
from samestep.world.world import World

FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - shared memory is what is wanted
_MARK = 32


class Apart(Exception):  # noqa: N818 - reads as what they are
    """Ranks have no memory in common; the message says why."""


def segment(world: World, size: int) -> mmap.mmap:
    """Return `size` bytes that all ranks share, zeros at first.

    Args:
        world: the ranks; all of them call this.
        size: in bytes; the pages are there, so that writing to them cannot fail.

    Raises:
        Apart: they cannot; on all ranks, with one reason.
    """
    file, offer = _offer(size) if world.place.is_main else (None, "")
    try:
        offer = world.broadcast_object(offer)
        if isinstance(offer, str):
            raise Apart(offer)
        mapped = mmap.mmap(file, size) if file is not None else _map(*offer, size)
        reached = world.all_gather_objects(mapped is not None)
    finally:
        if file is not None:
            os.close(file)
    if mapped is None or not all(reached):
        raise Apart(
            f"rank {reached.index(False)} has no access to what rank 0 has made in {FILE_SYSTEM}, as in "
            "containers of their own"
        )
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


def _offer(size: int) -> tuple[int | None, tuple[Path, bytes] | str]:
    """Return a new file, and how others find it; or why there is none."""
    try:
        file = _make(size)
    except OSError as error:
        return None, _why_not(size, error)
    return file, (_path(file), os.pread(file, _MARK, 0))


def _make(size: int) -> int:
    """Make the file and open it."""
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
    """Return how other processes of this host, and of this space of process ids, open a file of this one."""
    return Path(f"/proc/{os.getpid()}/fd/{file}")


def _map(path: Path, mark: bytes, size: int) -> mmap.mmap | None:
    try:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None
    return mapped if mapped[:_MARK] == mark else None
