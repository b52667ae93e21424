"""A folder that the copies of a script share."""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samestep.world.world import World


@dataclass(frozen=True, slots=True)
class CommonFolder:
    """A folder that rank 0 has made, and the ranks that see it: not those of other nodes, as a rule."""

    path: Path
    sharing: Collection[int]


@contextmanager
def common_folder(world: World) -> Iterator[CommonFolder]:
    """Make a folder for all ranks; the last that leaves removes it, because no copy waits for another."""
    made = tempfile.mkdtemp(prefix="samestep-") if world.place.is_main else ""
    path = Path(world.broadcast_object(made))
    seen = world.all_gather_objects(path.exists())
    sharing = [rank for rank, here in enumerate(seen) if here]
    try:
        yield CommonFolder(path, sharing)
    finally:
        if world.place.rank in sharing:
            _left(path, world.place.rank).touch()
            if all(_left(path, rank).exists() for rank in sharing):
                shutil.rmtree(path, ignore_errors=True)


def _left(path: Path, rank: int) -> Path:
    return path / f"left.{rank}"
