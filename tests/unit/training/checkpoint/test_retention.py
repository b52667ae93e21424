"""The last and the best checkpoints are kept, and older ones are deleted."""

import errno
import os

import hypothesis.strategies as st
import pytest
from hypothesis import given

from samestep.base.errors import UsageError
from samestep.training.checkpoint.checkpoint_schedule import Retention, expired, prune
from samestep.training.checkpoint.newest import newest_valid, set_aside_later, steps_in
from samestep.training.checkpoint.read import read
from support.snapshots import names, snapshot, write

SCORES = st.dictionaries(st.integers(0, 50), st.none() | st.floats(0, 1), min_size=1)


@given(scores=SCORES, last=st.integers(1, 5), best=st.booleans(), data=st.data())
def test_the_last_and_the_best_checkpoints_are_kept_and_later_ones_are_not_deleted(scores, last, best, data):
    newest = data.draw(st.sampled_from(sorted(scores)))
    upto = {step: score for step, score in scores.items() if step <= newest}

    gone = expired(scores, Retention(last=last, best=best), newest=newest)
    stay = sorted(set(upto) - set(gone))

    assert set(gone) <= set(upto)
    assert stay[-last:] == sorted(upto)[-last:]
    highest = max((score for score in upto.values() if score is not None), default=None)
    if best and highest is not None:
        assert any(upto[step] == highest for step in stay)
    assert len(stay) <= last + best


def test_the_newest_of_equal_scores_is_kept():
    assert expired({1: 0.5, 2: 0.5, 3: None}, Retention(last=1), newest=3) == [1]


def test_a_retention_of_no_checkpoint_is_refused():
    with pytest.raises(UsageError, match="keep is 0"):
        Retention(last=0)


def test_pruning_counts_and_deletes_complete_checkpoints_only(tmp_path):
    for step, score in ((1, 0.1), (2, 0.9), (3, float("nan")), (4, 0.2), (5, 0.3), (6, 0.4)):
        write(snapshot(state={"step": step, "score": score}), tmp_path / f"step-{step}")
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    (tmp_path / "step-5" / "manifest.json").unlink()
    (tmp_path / "step-7").mkdir()
    elsewhere = write(snapshot(0), tmp_path / "elsewhere")
    (tmp_path / "step-0").symlink_to(elsewhere)

    message = prune(tmp_path, Retention(last=2), newest=6)

    assert [name for name in ("step-0", "step-1", "step-7") if name in message] == [
        "step-0",
        "step-1",
        "step-7",
    ]
    assert steps_in(tmp_path) == [7, 6, 5, 4, 2, 1, 0]
    assert read(elsewhere).state["step"] == 0
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_checkpoints_that_cannot_be_deleted_are_reported_and_the_others_are_deleted(tmp_path, monkeypatch):
    for step in (1, 2, 3, 4):
        write(snapshot(step), tmp_path / f"step-{step}")
    rename = os.rename

    def refuse_some(name, target, **options):
        if name in {"step-1", "step-3"}:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(name, target, **options)

    monkeypatch.setattr(os, "rename", refuse_some)

    message = prune(tmp_path, Retention(last=1), newest=4)

    assert message == (
        f"old checkpoints in {tmp_path} cannot be deleted: step-1 (Permission denied), "
        "step-3 (Permission denied). Delete them by hand."
    )
    assert steps_in(tmp_path) == [4, 3, 1]


def test_later_checkpoints_are_renamed_so_that_no_resume_uses_them(tmp_path):
    for step in (1, 2, 3):
        write(snapshot(step), tmp_path / f"step-{step}")

    moved, alone = set_aside_later(tmp_path, than=1)
    write(snapshot(2), tmp_path / "step-2")
    again, _ = set_aside_later(tmp_path, than=1)

    assert alone is None
    assert [path.name for path in moved + again] == ["left-step-3", "left-step-2", "left-step-2.2"]
    assert newest_valid(tmp_path).path.name == "step-1"
    assert newest_valid(moved[0]).snapshot.state["step"] == 3
