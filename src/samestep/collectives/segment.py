"""A piece of memory that all ranks of one host see, and that goes with the last of them.

Whether ranks share a host is not asked but tried: hostnames lie (containers of one host have several, and
containers of several hosts may have one). Rank 0 makes a file in the shared-memory file system and tells its
name and what stands in it; who finds that there shares it. Then the name is removed: the memory lives as long
as somebody maps it, and no longer, however they end.
"""

import mmap
import os
import secrets
import tempfile
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
    made = _make(size) if world.place.is_main else None
    path, mark = world.broadcast_object(None if made is None else made) or (None, b"")
    mapped = None if path is None else _map(path, mark, size)
    found = torch.tensor([0.0 if mapped is None else 1.0], device=world.device)
    world.all_reduce(found, op="min")
    if world.place.is_main and path is not None:
        path.unlink(missing_ok=True)
    if not found.item():
        return None
    assert mapped is not None
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


def _make(size: int) -> tuple[Path, bytes] | None:
    """Make the file; None where there is no such file system, or too little of it."""
    mark = secrets.token_bytes(_MARK)
    try:
        file, name = tempfile.mkstemp(prefix="samestep-", dir=FILE_SYSTEM)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, mark, 0)
    except OSError:
        Path(name).unlink(missing_ok=True)
        return None
    finally:
        os.close(file)
    return Path(name), mark


def _map(path: Path, mark: bytes, size: int) -> mmap.mmap | None:
    try:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None
    return mapped if mapped[:_MARK] == mark else None
