"""What copies share outlives the first of them that leaves, and goes with the last."""

import time
from pathlib import Path

from samestep.autopilot.common import common_folder
from samestep.autopilot.file_calls import unredirected
from samestep.autopilot.steering import steering
from support.hosted import as_found


def slower_than_rank_0(world, folder):
    """Return whether a copy that is behind sees what rank 0, which has left, has written."""
    with as_found(), steering(world):
        world.barrier()
        if world.place.is_main:
            (folder / "result").write_text("x")
        else:
            with unredirected():
                while not (folder / "left").exists():
                    time.sleep(0.001)
        seen = (folder / "result").exists()
    if world.place.is_main:
        (folder / "left").touch()
    return seen


def test_a_copy_that_is_behind_does_not_see_what_rank_0_has_written(processes, tmp_path):
    assert processes.run(slower_than_rank_0, 2, tmp_path) == [True, False]


def leave_one_by_one(world, folder):
    with common_folder(world) as common:
        (common.path / f"{world.place.rank}").touch()
        world.barrier()
        found = sorted(path.name for path in common.path.iterdir())
        world.barrier()
        while world.place.rank and not (folder / str(world.place.rank - 1)).exists():
            time.sleep(0.001)
    there = common.path.exists()
    (folder / str(world.place.rank)).touch()
    return found, list(common.sharing), there, str(common.path)


def test_the_folder_goes_with_the_last_rank(processes, tmp_path):
    ranks = processes.run(leave_one_by_one, 3, tmp_path)

    for found, sharing, _, path in ranks:
        assert found == ["0", "1", "2"]
        assert sharing == [0, 1, 2]
        assert not Path(path).exists()
    assert [there for _, _, there, _ in ranks] == [True, True, False]
