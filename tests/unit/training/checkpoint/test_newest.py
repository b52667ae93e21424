"""The newest valid checkpoint is found, and each newer one is reported with the reason."""

import os
import shutil

import pytest

from samestep.base.errors import CheckpointError
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.checkpoint import newest
from samestep.training.checkpoint.newest import checkpoints_in, choose_on_all, newest_valid
from support.snapshots import in_hand, snapshot, write


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints of steps with different numbers of digits."""
    for step in (5, 90, 100):
        write(snapshot(step), tmp_path / f"step-{step}")
    return tmp_path


def test_a_checkpoint_that_a_writer_deletes_meanwhile_is_read_from_its_successor(checkpoints, monkeypatch):
    """Only this catches an evaluation job that finds none, though there always is a complete one."""
    read, reads = newest.read, []

    def read_late(path):
        reads.append(path.name)
        if len(reads) == 1:
            for step in (5, 90, 100):
                shutil.rmtree(checkpoints / f"step-{step}")
            write(snapshot(101), checkpoints / "step-101")
        return read(path)

    monkeypatch.setattr(newest, "read", read_late)
    assert newest_valid(checkpoints).path.name == "step-101"
    assert reads == ["step-100", "step-90", "step-5", "step-101"]


def test_checkpoints_are_ordered_by_step_number_not_by_name(checkpoints):
    chosen = newest_valid(checkpoints)

    assert (chosen.path.name, chosen.snapshot.state["step"], chosen.refused) == ("step-100", 100, ())


def test_damaged_checkpoints_are_reported_newest_first_and_an_older_one_is_used(checkpoints):
    os.truncate(checkpoints / "step-100" / "model.safetensors", 10)
    (checkpoints / "step-90" / "manifest.json").unlink()

    chosen = newest_valid(checkpoints)

    assert chosen.path.name == "step-5"
    assert [path.name for path, _ in chosen.refused] == ["step-100", "step-90"]
    assert "model.safetensors is damaged" in chosen.refused[0][1]
    assert "no manifest.json" in chosen.refused[1][1]


def test_a_checkpoint_that_was_renamed_to_a_later_step_is_refused(checkpoints):
    (checkpoints / "step-5").rename(checkpoints / "step-500")

    chosen = newest_valid(checkpoints)

    assert chosen.path.name == "step-100"
    assert "step-500 contains step 5" in chosen.refused[0][1]


def test_drafts_and_folders_with_other_names_are_ignored(checkpoints):
    for name in (
        ".step-200.draft-1",
        "step-200.bak",
        "step-0200",
        "left-step-200",
        "step-x",
        ".step-200.gone-2",
    ):
        shutil.copytree(checkpoints / "step-100", checkpoints / name)

    assert [step for step, _ in checkpoints_in(checkpoints)] == [100, 90, 5]
    assert newest_valid(checkpoints).refused == ()


def test_a_checkpoint_is_found_after_its_replacement_was_killed(checkpoints):
    in_hand(checkpoints / "step-100", "old")

    assert newest_valid(checkpoints).path.name == "step-100"


def test_a_given_checkpoint_is_used_under_any_name(checkpoints):
    (checkpoints / "step-5").rename(checkpoints / "the good one")

    assert newest_valid(checkpoints / "the good one").snapshot.state["step"] == 5


def test_a_given_damaged_checkpoint_is_refused_although_others_are_valid(checkpoints):
    (checkpoints / "step-100" / "manifest.json").unlink()

    with pytest.raises(CheckpointError, match=r"step-100 .* manifest\.json"):
        newest_valid(checkpoints / "step-100")


def test_a_given_checkpoint_is_found_after_its_replacement_was_killed(checkpoints):
    in_hand(checkpoints / "step-100", "old")
    (checkpoints / ".mine.old-1").mkdir()

    assert newest_valid(checkpoints / "step-100").snapshot.state["step"] == 100
    assert (checkpoints / ".mine.old-1").exists()


@pytest.mark.parametrize("name", ["step-100", "left-step-100", "left-step-100.2"])
def test_a_given_damaged_checkpoint_is_refused_also_if_a_missing_one_is_accepted(checkpoints, name):
    folder = (checkpoints / "step-100").rename(checkpoints / name)
    (folder / "manifest.json").unlink()

    with pytest.raises(CheckpointError, match=rf"{name} .* manifest\.json"):
        choose_on_all(SoloWorld(), folder, missing_ok=True)


def test_a_folder_of_checkpoints_can_have_the_name_of_a_checkpoint(checkpoints):
    folder = checkpoints / "step-7"
    assert choose_on_all(SoloWorld(), folder, missing_ok=True) is None

    write(snapshot(3), folder / "step-3")
    assert choose_on_all(SoloWorld(), folder).path == folder / "step-3"


def test_every_checkpoint_is_reported_if_none_is_valid(checkpoints):
    for step in (5, 90, 100):
        (checkpoints / f"step-{step}" / "state.json").unlink()

    with pytest.raises(CheckpointError, match=r"step-100: .*step-90: .*step-5: .*state\.json is missing"):
        newest_valid(checkpoints)


def test_a_folder_without_checkpoints_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no folder is called step-N"):
        newest_valid(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        newest_valid(tmp_path / "none")


def test_a_missing_folder_can_be_accepted_but_damaged_checkpoints_are_refused(checkpoints):
    world = SoloWorld()
    assert choose_on_all(world, checkpoints / "none", missing_ok=True) is None

    for step in (5, 90, 100):
        (checkpoints / f"step-{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="can be used"):
        choose_on_all(world, checkpoints, missing_ok=True)
