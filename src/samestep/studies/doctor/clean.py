"""Removes temporary folders and shared memory of this user's dead runs from this host, and reports them."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from samestep.base.owned_folders import orphans, remove_dead
from samestep.base.units import bytes_text
from samestep.studies.doctor.orphaned_processes import segments_of_the_dead


def clean(
    parents: Sequence[Path] | None = None,
    memory: Path = Path("/dev/shm"),  # noqa: S108 - the kernel's own
) -> list[str]:
    """Remove temporary folders and shared memory whose owners are dead; return a line for each.

    Args:
        parents: where the folders are; by default the temporary directory and the working folder.
        memory: the folder of shared memory.
    """
    where = None if parents is None else list(parents)
    sizes = {one.path: _bytes(one.path) for one in orphans(where)}
    lines = [f"removed {path} ({bytes_text(sizes.get(path, 0))})" for path in remove_dead(where)]
    lines += [
        f"left {one.path}: it could not be removed"
        if one.life == "dead"
        else f"left {one.path}: its owner can be alive on another host or in another container"
        for one in orphans(where)
    ]
    for segment in segments_of_the_dead(memory):
        path = memory / segment.name
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                path.unlink()
                lines.append(f"removed {path} ({bytes_text(segment.bytes)})")
    return lines or ["no files of dead runs found"]


def _bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):  # follows no links
        for name in names:
            with suppress(OSError):
                total += (Path(path) / name).lstat().st_size
    return total
