"""A folder that the ranks of a replicated script share."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import Error
from samestep.base.owned_folders import make_folder, remove_folder, use_folder
from samestep.ranks.world.protocol import World


@dataclass(frozen=True, slots=True)
class CommonFolder:
    """A folder that rank 0 has made, and the ranks that see it."""

    path: Path
    sharing: Collection[int]


@contextmanager
def common_folder(world: World) -> Iterator[CommonFolder]:
    """Make a folder for all ranks; the last rank to leave removes it, because no rank waits for another.

    It is a temporary folder. If ranks of other nodes cannot see that, it is a hidden folder in rank 0's
    working folder, provided that all ranks see this one: then they also see the files that rank 0 changes.
    """
    path, sharing = _make(world, None)
    if len(sharing) < world.place.size:
        shared, all_sharing = _make(world, Path.cwd())
        kept, dropped = (shared, path) if len(all_sharing) == world.place.size else (path, shared)
        sharing = all_sharing if kept is shared else sharing
        path = kept
        if world.place.is_main:
            remove_folder(dropped)
    process = os.getpid()
    if world.place.rank in sharing and not world.place.is_main:
        use_folder(path)
    try:
        yield CommonFolder(path, sharing)
    finally:
        # A forked process of the script leaves here too, but the folder belongs to its parent.
        if world.place.rank in sharing and os.getpid() == process:
            (path / f"left.{world.place.rank}").touch()
            if all((path / f"left.{rank}").exists() for rank in sharing):
                remove_folder(path)


def _make(world: World, parent: Path | None) -> tuple[Path, list[int]]:
    """Make a folder on rank 0; return it with the ranks that see it."""
    made, refused = "", ""
    if world.place.is_main:
        try:
            made = str(make_folder(parent))
        except Error as error:
            refused = str(error)
    made, refused = world.broadcast_object((made, refused))
    if refused and parent is None:
        raise Error(refused)
    path = Path(made)
    seen = world.all_gather_objects(bool(made) and path.exists())
    return path, [rank for rank, here in enumerate(seen) if here]
