"""Checkpoints are written while training continues, and a failed write affects no other checkpoint."""

import errno
import os
import threading
from contextlib import closing
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from samestep.base.errors import CheckpointError, UsageError
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.checkpoint import checkpoint_schedule
from samestep.training.checkpoint.checkpoint_schedule import (
    CheckpointManager,
    Retention,
    Writer,
    expired,
    prune,
)
from samestep.training.checkpoint.newest import checkpoints_in, newest_valid, set_aside_later
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.save import Stage
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.settings import RunOptions
from support.snapshots import in_hand, names, network, same, snapshot, stepped, write


def steps_in(folder):
    return [step for step, _ in checkpoints_in(folder)]


def save(writer, step, *, score=None, **changes):
    writer.save(snapshot(step, **changes), score=score)


class BlockedWrite:
    """Blocks the writing of checkpoints until `go` is set."""

    def __init__(self, monkeypatch):
        self.begun, self.go = threading.Event(), threading.Event()
        self.order = []
        self.write = checkpoint_schedule.write_staged
        monkeypatch.setattr(checkpoint_schedule, "write_staged", self)

    def __call__(self, staged, folder):
        self.begun.set()
        assert self.go.wait(60)
        path = self.write(staged, folder)
        self.order.append(f"{folder.name} is written")
        return path


def test_a_checkpoint_has_the_state_at_the_call_although_later_steps_change_it(tmp_path, monkeypatch):
    blocked = BlockedWrite(monkeypatch)
    model = network()
    optimizer = stepped(model)
    with closing(Writer(tmp_path, Retention())) as writer:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        momentum = optimizer.state_dict()["state"][0]["momentum_buffer"].clone()

        writer.save(
            Snapshot(model.state_dict(), {"optimizer": optimizer.state_dict()}, {"step": 1, "lr": 0.1})
        )
        assert blocked.begun.wait(60)
        for _ in range(3):
            optimizer.step()
        blocked.go.set()

    found = read(tmp_path / "step-1")
    assert same(dict(found.model), before)
    assert torch.equal(found.optimizer["optimizer"]["state"][0]["momentum_buffer"], momentum)
    assert not same(dict(model.state_dict()), before)


@pytest.mark.parametrize("has_started", [True, False])
def test_a_call_that_ctrl_c_interrupts_can_be_waited_for(tmp_path, monkeypatch, has_started):
    """The thread could not be joined before it had begun, and this error hid the Ctrl-C."""
    start = threading.Thread.start

    def interrupted(thread):
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_schedule, "_BEGINS_S", 60.0 if has_started else 0.0)
    with closing(Writer(tmp_path, Retention())) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(writer, 1)
        writer.wait()
        assert (tmp_path / "step-1").exists() == has_started
        save(writer, 2)
    assert (tmp_path / "step-2").exists()


def test_the_call_returns_before_the_checkpoint_is_written(tmp_path, monkeypatch):
    blocked = BlockedWrite(monkeypatch)
    writer = Writer(tmp_path, Retention())

    save(writer, 1)
    assert steps_in(tmp_path) == []
    blocked.go.set()
    writer.wait()

    assert steps_in(tmp_path) == [1]


def test_a_second_save_waits_for_the_first_because_both_use_the_same_memory(tmp_path, monkeypatch):
    blocked, waits = BlockedWrite(monkeypatch), threading.Event()
    take, join = Stage.take, threading.Thread.join

    def recorded(stage, given):
        blocked.order.append(f"step-{given.state['step']} is copied")
        return take(stage, given)

    def waiting(thread, *timeout):
        waits.set()
        join(thread, *timeout)

    monkeypatch.setattr(Stage, "take", recorded)
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 1)
        assert blocked.begun.wait(60)
        second = threading.Thread(target=save, args=(writer, 2))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", waiting)
            second.start()
            assert waits.wait(60)  # it has come to where it has to wait, or else it would have copied by now
        blocked.go.set()
        second.join()

    assert blocked.order == [
        "step-1 is copied",
        "step-1 is written",
        "step-2 is copied",
        "step-2 is written",
    ]
    assert [same(dict(read(tmp_path / f"step-{n}").model), dict(snapshot(n).model)) for n in (1, 2)] == [
        True
    ] * 2


def test_step_and_score_are_part_of_the_state(tmp_path):
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 7, state={"step": 7, "epoch": 1}, score=0.5, average=network(2).state_dict())

    found = read(tmp_path / "step-7")
    assert found.state == {"epoch": 1, "step": 7, "score": 0.5, "format": 1}
    assert same(dict(found.average), dict(network(2).state_dict()))


def test_the_last_and_the_best_checkpoints_are_kept_across_writers(tmp_path):
    scores = {1: 0.3, 2: 0.9, 3: 0.5, 4: 0.4}
    for step, score in scores.items():
        with closing(Writer(tmp_path, Retention(last=2))) as writer:  # as of a run that was resumed each time
            save(writer, step, score=score)

    assert steps_in(tmp_path) == [4, 3, 2]


def test_drafts_of_a_killed_writer_are_deleted(tmp_path):
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 3)
    in_hand(tmp_path / "step-3", "draft")

    Writer(tmp_path, Retention()).close()

    assert names(tmp_path) == []


def test_a_folder_of_the_user_with_a_name_like_ours_is_reported_and_kept(tmp_path):
    (tmp_path / ".photos.gone-2024").mkdir()

    with closing(Writer(tmp_path, Retention())) as writer:
        assert ".photos.gone-2024" in writer.warning
    assert names(tmp_path) == [".photos.gone-2024"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 1, score=0.1)
        save(writer, 1, score=0.2)

    assert read(tmp_path / "step-1").state["score"] == 0.2


def test_a_failed_write_is_reported_with_its_path_and_the_next_one_is_attempted(tmp_path, monkeypatch):
    writer = Writer(tmp_path, Retention())
    save(writer, 1)
    writer.wait()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("samestep.training.checkpoint.checkpoint_folders.os.fsync", full)
        save(writer, 2)
        writer.wait()
    assert writer.failure == f"cannot write the checkpoint {tmp_path / 'step-2'}: No space left on device."
    assert names(tmp_path) == ["step-1"]
    assert newest_valid(tmp_path).path.name == "step-1"

    save(writer, 3)
    writer.close()
    assert (writer.failure, newest_valid(tmp_path).path.name) == (None, "step-3")


def test_an_error_of_the_writing_thread_is_reported_and_not_raised(tmp_path, monkeypatch):
    def broken(*_):
        raise MemoryError("no more")

    monkeypatch.setattr(checkpoint_schedule, "write_staged", broken)
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 1)

    assert writer.failure == f"cannot write the checkpoint {tmp_path / 'step-1'}: MemoryError: no more."


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_the_new_one_kept(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    writer = Writer(tmp_path, Retention(last=1))
    save(writer, 1)
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr("samestep.training.checkpoint.checkpoint_schedule.delete", refused)
        save(writer, 2)
        writer.wait()

    assert (newest_valid(tmp_path).path.name, writer.failure) == ("step-2", None)
    assert writer.warning == (
        f"old checkpoints in {tmp_path} cannot be deleted: step-1 (Permission denied). Delete them by hand."
    )

    save(writer, 3)
    writer.close()
    assert (steps_in(tmp_path), writer.warning) == ([3], None)


def test_an_error_in_the_deletion_of_old_checkpoints_is_reported_and_not_raised(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no more")

    monkeypatch.setattr(checkpoint_schedule, "prune", broken)
    with closing(Writer(tmp_path, Retention())) as writer:
        save(writer, 1)

    assert (newest_valid(tmp_path).path.name, writer.failure) == ("step-1", None)
    assert writer.warning == f"old checkpoints in {tmp_path} cannot be listed: no more."


def test_state_that_cannot_be_saved_is_an_error_of_the_call(tmp_path):
    with (
        closing(Writer(tmp_path, Retention())) as writer,
        pytest.raises(CheckpointError, match=r"optimizer\.f is a "),
    ):
        save(writer, 1, optimizer={"f": save})


def test_a_folder_that_cannot_be_created_is_an_error_of_the_constructor(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*file/c: Not a directory"):
        Writer(tmp_path / "file" / "c", Retention())


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


def test_minutes_count_from_the_last_checkpoint(tmp_path, monkeypatch):
    """Only this finds a training that saves in each step once the first minutes are over."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(checkpoint_schedule, "time", clock)
    options, found = RunOptions(checkpoint_minutes=1), []
    with closing(CheckpointManager(SoloWorld(), options, folder=tmp_path)) as manager:
        for seconds in (59.0, 60.0, 61.0, 121.0):
            now[0] = seconds
            found.append(manager.late)
            if manager.late:
                manager.save(snapshot(1))
    assert found == [False, True, False, True]
