"""A folder that the ranks of a replicated script share."""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samestep.world.world import World


@dataclass(frozen=True, slots=True)
class CommonFolder:
    """A folder that rank 0 has made, and the ranks that see it."""

    path: Path
    sharing: Collection[int]


@contextmanager
def common_folder(world: World) -> Iterator[CommonFolder]:
    """Make a folder for all ranks; the last one that leaves removes it, because none waits for another.

    It is a temporary one. Where ranks of other nodes do not see that, it is a hidden one in rank 0's working
    folder, if all ranks see this: then they also see the files that rank 0 changes.
    """
    path, sharing = _make(world, None)
    if len(sharing) < world.place.size:
        shared, all_sharing = _make(world, Path.cwd())
        kept, dropped = (shared, path) if len(all_sharing) == world.place.size else (path, shared)
        sharing = all_sharing if kept is shared else sharing
        path = kept
        if world.place.is_main:
            shutil.rmtree(dropped, ignore_errors=True)
    try:
        yield CommonFolder(path, sharing)
    finally:
        if world.place.rank in sharing:
            _left(path, world.place.rank).touch()
            if all(_left(path, rank).exists() for rank in sharing):
                shutil.rmtree(path, ignore_errors=True)


def _make(world: World, parent: Path | None) -> tuple[Path, list[int]]:
    """Make a folder on rank 0, and return it with the ranks that see it."""
    made = ""
    if world.place.is_main:
        try:
            made = tempfile.mkdtemp(prefix="samestep-" if parent is None else ".samestep-", dir=parent)
        except OSError:
            if parent is None:
                raise
    path = Path(world.broadcast_object(made))
    seen = world.all_gather_objects(made != "" or (str(path) != "." and path.exists()))
    return path, [rank for rank, here in enumerate(seen) if here]


def _left(path: Path, rank: int) -> Path:
    return path / f"left.{rank}"
