"""Folders and files that ranks share exist until the last rank leaves."""

import time
from pathlib import Path
from unittest.mock import patch

import pytest
from samestep.autopilot.files.kept_originals import LARGE as LARGE_BYTES
from samestep.autopilot.files.sibling_ranks import SiblingRanks
from samestep.autopilot.replicated_script import replicated_script
from samestep.autopilot.script.shared_folder import common_folder

from samestep.autopilot.files.file_calls import unredirected
from support.script_runner import restored_process_state, run_script


def slower_than_rank_0(world, folder):
    """Return whether a rank finds a file that rank 0 wrote later in the script; rank 1 is slower."""
    with restored_process_state(), replicated_script(world):
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


def test_a_slower_rank_does_not_find_a_file_that_rank_0_has_written(processes, tmp_path):
    assert processes.run(slower_than_rank_0, 2, tmp_path) == [True, False]


def leave_one_by_one(world, folder):
    with common_folder(world) as common:
        (common.path / f"{world.place.rank}").touch()
        world.barrier()
        found = sorted(path.name for path in common.path.iterdir() if not path.name.startswith("."))
        world.barrier()
        while world.place.rank and not (folder / str(world.place.rank - 1)).exists():
            time.sleep(0.001)
    there = common.path.exists()
    (folder / str(world.place.rank)).touch()
    return found, list(common.sharing), there, str(common.path)


def test_the_folder_is_deleted_with_the_last_rank(processes, tmp_path):
    ranks = processes.run(leave_one_by_one, 3, tmp_path)

    for found, sharing, _, path in ranks:
        assert found == ["0", "1", "2"]
        assert sharing == [0, 1, 2]
        assert not Path(path).exists()
    assert [there for _, _, there, _ in ranks] == [True, True, False]


def without_common_temporary_folder(world, folder, seen_in_working_folder):
    """Return what is shared if rank 1 cannot access the temporary folder of rank 0."""
    exists = Path.exists

    def is_seen(path):
        here = ".samestep-" in str(path)
        return exists(path) and (world.place.is_main or (here and seen_in_working_folder))

    with (
        patch.object(Path, "cwd", lambda: folder),
        patch.object(Path, "exists", is_seen),
        common_folder(world) as common,
    ):
        world.barrier()
        hidden = sorted(path.name for path in folder.iterdir())
        world.barrier()
    world.barrier()
    return common.path.parent == folder, list(common.sharing), len(hidden), exists(common.path)


@pytest.mark.parametrize(("seen", "found"), [(True, (True, [0, 1], 1)), (False, (False, [0], 0))])
def test_ranks_of_other_nodes_share_a_hidden_folder_if_they_can_access_it(processes, tmp_path, seen, found):
    for *shared, left in processes.run(without_common_temporary_folder, 2, tmp_path, seen):
        assert tuple(shared) == found
        assert not left


def keep_open(world, folder):
    """Return how long rank 0 waits for rank 1 to close a file, and what a later rank reads of it."""
    siblings = SiblingRanks(folder, world.place.rank, [0, 1])
    siblings.register()
    status = (folder / "data").stat()
    with (folder / "data").open() as file:
        world.barrier()
        if not world.place.is_main:
            time.sleep(0.3)
            file.close()
            siblings.announce(str(folder / "data"))
            return None
    began = time.monotonic()
    siblings.await_closed(status)
    waited = time.monotonic() - began
    return waited, siblings.all_change(str(folder / "data")), siblings.all_change(str(folder / "data/below"))


def test_rank_0_waits_until_other_ranks_have_closed_or_changed_a_file(processes, tmp_path):
    (tmp_path / "data").write_text("1")
    (waited, has_changed, below), _ = processes.run(keep_open, 2, tmp_path)

    assert 0.2 < waited < 3
    assert has_changed
    assert below


LARGE = """
import os
import time

import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).mean().backward()
    optimizer.step()
    with open("large.bin", "rb") as file:
        print(len(file.read()), flush=True)
    with open("large.bin", "r+b" if step else "ab") as file:
        file.write(b"12")
    if step == 1:
        os.rename("large.bin", "moved.bin")
        open("large.bin", "wb").close()
        os.remove("moved.bin")
"""


def test_large_files_are_not_copied_for_the_other_ranks(processes, tmp_path):
    (tmp_path / "script.py").write_text(LARGE)
    printed = []
    for size in (1, 2):
        (tmp_path / "large.bin").write_bytes(b"0" * (LARGE_BYTES + 1))
        printed += [
            text for text, _, _ in processes.run(run_script, size, tmp_path / "script.py", (), tmp_path)
        ]
    assert printed[0].split() == [str(LARGE_BYTES + 1), str(LARGE_BYTES + 3), "0"]
    assert printed[1:] == printed[:1] * 2
