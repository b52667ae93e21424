"""The newest usable checkpoint is found, and each newer one told with the reason."""

import os
import shutil

import pytest

from samestep.base.errors import CheckpointError
from samestep.ranks.world.solo import SoloWorld
from samestep.training.checkpoint.newest import choose_on_all, newest_valid, steps_in
from support.snapshots import in_hand, snapshot, write


@pytest.fixture
def checkpoints(tmp_path):
    """Steps of different numbers of digits."""
    for step in (5, 90, 100):
        write(snapshot(step), tmp_path / f"step-{step}")
    return tmp_path


def test_the_newest_is_by_number_not_by_name(checkpoints):
    chosen = newest_valid(checkpoints)

    assert (chosen.path.name, chosen.snapshot.state["step"], chosen.refused) == ("step-100", 100, ())


def test_damaged_ones_are_told_newest_first_and_the_one_before_is_used(checkpoints):
    os.truncate(checkpoints / "step-100" / "model.safetensors", 10)
    (checkpoints / "step-90" / "manifest.json").unlink()

    chosen = newest_valid(checkpoints)

    assert chosen.path.name == "step-5"
    assert [path.name for path, _ in chosen.refused] == ["step-100", "step-90"]
    assert "model.safetensors is damaged" in chosen.refused[0][1]
    assert "no manifest.json" in chosen.refused[1][1]


def test_a_renamed_checkpoint_does_not_pass_for_a_newer_one(checkpoints):
    (checkpoints / "step-5").rename(checkpoints / "step-500")

    chosen = newest_valid(checkpoints)

    assert chosen.path.name == "step-100"
    assert "step-500 contains step 5" in chosen.refused[0][1]


def test_drafts_and_other_names_are_no_checkpoints(checkpoints):
    for name in (
        ".step-200.draft-1",
        "step-200.bak",
        "step-0200",
        "left-step-200",
        "step-x",
        ".step-200.gone-2",
    ):
        shutil.copytree(checkpoints / "step-100", checkpoints / name)

    assert steps_in(checkpoints) == [100, 90, 5]
    assert newest_valid(checkpoints).refused == ()


def test_one_that_was_being_replaced_when_the_writer_was_killed_is_found(checkpoints):
    in_hand(checkpoints / "step-100", "old")

    assert newest_valid(checkpoints).path.name == "step-100"


def test_a_single_checkpoint_is_taken_under_any_name(checkpoints):
    (checkpoints / "step-5").rename(checkpoints / "the good one")

    assert newest_valid(checkpoints / "the good one").snapshot.state["step"] == 5


def test_a_single_damaged_checkpoint_is_not_replaced_by_another(checkpoints):
    (checkpoints / "step-100" / "manifest.json").unlink()

    with pytest.raises(CheckpointError, match=r"step-100 .* manifest\.json"):
        newest_valid(checkpoints / "step-100")


def test_a_single_one_that_was_being_replaced_when_the_writer_was_killed_is_found(checkpoints):
    in_hand(checkpoints / "step-100", "old")
    (checkpoints / ".mine.old-1").mkdir()

    assert newest_valid(checkpoints / "step-100").snapshot.state["step"] == 100
    assert (checkpoints / ".mine.old-1").exists()


@pytest.mark.parametrize("name", ["step-100", "left-step-100", "left-step-100.2"])
def test_a_single_damaged_checkpoint_is_not_a_beginning_without_one(checkpoints, name):
    folder = (checkpoints / "step-100").rename(checkpoints / name)
    (folder / "manifest.json").unlink()

    with pytest.raises(CheckpointError, match=rf"{name} .* manifest\.json"):
        choose_on_all(SoloWorld(), folder, missing_ok=True)


def test_a_place_of_checkpoints_may_be_called_as_one_of_them(checkpoints):
    place = checkpoints / "step-7"
    assert choose_on_all(SoloWorld(), place, missing_ok=True) is None

    write(snapshot(3), place / "step-3")
    assert choose_on_all(SoloWorld(), place).path == place / "step-3"


def test_where_none_is_usable_each_is_told(checkpoints):
    for step in (5, 90, 100):
        (checkpoints / f"step-{step}" / "state.json").unlink()

    with pytest.raises(CheckpointError, match=r"step-100: .*step-90: .*step-5: .*state\.json is missing"):
        newest_valid(checkpoints)


def test_where_there_is_nothing_it_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no folder is called step-N"):
        newest_valid(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        newest_valid(tmp_path / "none")


def test_a_beginning_without_checkpoints_is_not_one_with_damaged_ones(checkpoints):
    world = SoloWorld()
    assert choose_on_all(world, checkpoints / "none", missing_ok=True) is None

    for step in (5, 90, 100):
        (checkpoints / f"step-{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="can be used"):
        choose_on_all(world, checkpoints, missing_ok=True)
