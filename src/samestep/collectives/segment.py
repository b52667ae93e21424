"""A piece of memory that all ranks of one host see, and that goes with the last of them.

Whether ranks share a host is not asked but tried: hostnames lie (containers of one host have several, and
containers of several hosts may have one). Rank 0 makes a file without a name in the shared-memory file system
and tells under which number its process has it open, and what stands in it; who finds that there shares it.
So the memory lives as long as somebody has it, and no longer, however and whenever they end.
"""

import mmap
import os
import secrets
from pathlib import Path

import torch

from samestep.world.world import World

FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - shared memory is what is wanted
_MARK = 32


def segment(world: World, size: int) -> mmap.mmap | None:
    """Return `size` bytes that all ranks share, zeros at first; None on all ranks if they cannot.

    Args:
        world: the ranks; all of them call this.
        size: in bytes; the pages are there, so that writing to them cannot fail.
    """
    file = _make(size) if world.place.is_main else None
    try:
        told = None if file is None else (_path(file), os.pread(file, _MARK, 0))
        path, mark = world.broadcast_object(told) or (None, b"")
        mapped = None if path is None else _map(path, mark, size)
        found = torch.tensor([0.0 if mapped is None else 1.0], device=world.device)
        world.all_reduce(found, op="min")
    finally:
        if file is not None:
            os.close(file)
    if not found.item():
        return None
    assert mapped is not None
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


def _make(size: int) -> int | None:
    """Make the file and open it; None where there is no such file system, or too little of it."""
    try:
        file = os.open(FILE_SYSTEM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, secrets.token_bytes(_MARK), 0)
    except OSError:
        os.close(file)
        return None
    return file


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
