"""A run folder is checked before work starts, and a run without a result did not finish."""

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from samestep.base.errors import UsageError
from samestep.training.output.run_folder import LOCK_FILE, LineFiles, Result, RunFolder, RunLock
from support.systems import small_file_system

RESULT = Result(
    accuracy=0.5,
    correct=1,
    total=2,
    loss=0.7,
    epochs=1,
    steps=4,
    seconds=2.0,
    samples_per_second=10.0,
    weights_sha256="ab",
    world_size=2,
    step_s={"data": 0.001, "forward": 0.002, "backward": 0.003, "exposed_sync": 0.004, "optimizer": 0.0},
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_config_and_result_are_written(tmp_path):
    RunFolder.prepare(tmp_path / "a" / "run")
    folder = RunFolder(tmp_path / "a" / "run")

    folder.write_config({"lr": 0.1, "name": "x"})
    folder.steps([{"step": 1}, {"step": 2}])
    folder.steps([{"step": 3}])
    folder.evaluation({"step": 3, "accuracy": 0.5})
    folder.ranks([{"step": 3, "rank": 0}, {"step": 3, "rank": 1}])
    folder.finish(RESULT)

    assert (folder.path / "config.toml").read_text() == 'lr = 0.1\nname = "x"\n'
    assert [row["step"] for row in lines(folder.path / "metrics.jsonl")] == [1, 2, 3]
    assert [row["accuracy"] for row in lines(folder.path / "evaluations.jsonl")] == [0.5]
    assert [row["rank"] for row in lines(folder.path / "ranks.jsonl")] == [0, 1]
    result = json.loads((folder.path / "result.json").read_text())
    assert result["accuracy"] == 0.5
    assert result["step_s"]["exposed_sync"] == 0.004
    assert set(result["provenance"]) == {"schema", "created", "command", "machine"}


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "result.json").write_text("{}")

    with pytest.raises(UsageError, match=r"\(result\.json\)"):
        RunFolder.prepare(tmp_path)


def test_a_folder_that_cannot_be_created_is_refused_with_its_flag(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot write to the output folder .*--out"):
        RunFolder.prepare(tmp_path / "file" / "run")


def test_the_summary_has_the_accuracy_and_the_shares_of_the_step_time():
    reached, step = RESULT.summary().splitlines()
    assert [
        value
        for value in ("50.00%", "1/2", "1 epoch", "4 steps", "2.0 s", "10 samples/s")
        if value not in reached
    ] == []
    values = ("10.00 ms", "exposed communication 40%", "backward 30%", "forward 20%", "data 10%", "500.00 ms")
    assert [value for value in values if value not in step] == []  # 500 ms: 2 s over 4 steps


def test_a_diverged_run_writes_null_not_nan(tmp_path):
    RunFolder(tmp_path).steps([{"loss": float("nan"), "lr": float("inf"), "deep": [{"x": float("-inf")}]}])

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row == {"loss": None, "lr": None, "deep": [{"x": None}]}


@pytest.mark.parametrize(("evaluates", "kept"), [(True, [0, 2]), (False, [0, 2, 4])])
def test_an_evaluation_that_a_start_repeats_is_removed(evaluates, kept, tmp_path):
    """Only this catches two rows of one step, of a run that was stopped or killed after its evaluation."""
    folder = RunFolder(tmp_path)
    for step in (0, 2, 4, 6):
        folder.evaluation({"step": step})
        folder.steps([{"step": step}])
    folder.begin({"step": 4, "world_size": 1}, evaluates=evaluates)

    assert [row["step"] for row in lines(tmp_path / "evaluations.jsonl")] == kept
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [0, 2, 4]


def test_a_resumed_run_removes_rows_after_its_checkpoint_and_partial_rows(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"step": 0, "world_size": 1})
    folder.steps([{"step": step} for step in range(1, 8)])
    folder.ranks([{"step": 4, "rank": 0}, {"step": 4, "rank": 1}, {"step": 7, "rank": 0}])
    folder.evaluation({"step": 7})
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 8, "lo')

    folder.begin({"step": 5, "world_size": 3})
    folder.steps([{"step": 6}])

    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in lines(tmp_path / "ranks.jsonl")] == [4, 4]
    assert lines(tmp_path / "evaluations.jsonl") == []
    sessions = lines(tmp_path / "sessions.jsonl")
    assert [(row["step"], row["world_size"]) for row in sessions] == [(0, 1), (5, 3)]
    assert set(sessions[0]["provenance"]) == {"schema", "created", "command", "machine"}


@pytest.mark.parametrize(
    "row", ["[" * 100_000, '{"step": 2, "a": ' + "[" * 70 + "]" * 70 + "}", '"step"', '{"step": 2.5}']
)
def test_a_resumed_run_keeps_the_rows_before_an_invalid_one(tmp_path, row):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + row + '\n{"step": 3}\n')

    RunFolder(tmp_path).begin({"step": 5, "world_size": 1})

    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ([], r".*config\.toml"),
        (["config.toml", "result.json"], r".*result\.json"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_refused_with_the_file(tmp_path, holds, message):
    for name in holds:
        (tmp_path / name).write_text("")

    with pytest.raises(UsageError, match=f"--resume {tmp_path}{message}"):
        RunFolder.reopen(tmp_path)


def test_a_second_lock_is_refused_with_the_process_that_holds_it(tmp_path):
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    assert first.take() is None

    with pytest.raises(UsageError) as refused:
        second.take()

    assert f"{os.getpid()} on {socket.gethostname()}" in str(refused.value)
    first.close()
    assert second.take() is None
    second.close()


@contextmanager
def forked(act):
    """Fork a process that calls `act` and then sleeps; yield its process id."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            os.write(write, b".")
            time.sleep(60)
        finally:
            os._exit(1)
    try:
        os.close(write)
        assert os.read(read, 1) == b"."
        yield child
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    with forked(lambda: RunLock(tmp_path).take()) as child, pytest.raises(UsageError, match=str(child)):
        RunLock(tmp_path).take()

    lock = RunLock(tmp_path)
    assert lock.take() is None
    lock.close()


def test_a_child_that_outlives_the_holder_does_not_keep_the_lock(tmp_path):
    """A loading process can outlive its killed rank, whose restart must not be refused."""
    lock, again = RunLock(tmp_path), RunLock(tmp_path)
    lock.take()
    with forked(lambda: None):
        lock.close()
        assert again.take() is None
    again.close()


def test_a_restart_waits_for_the_lock_of_the_previous_process(tmp_path):
    before = RunLock(tmp_path)
    before.take()
    threading.Timer(0.2, before.close).start()

    after = RunLock(tmp_path, wait_s=20)

    assert after.take() is None
    after.close()


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = RunLock(tmp_path)

    assert str(tmp_path) in lock.take()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    lock.close()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_a_fifo_folder_or_link_in_place_of_the_lock_file_is_refused(tmp_path, kind):
    path = tmp_path / LOCK_FILE
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "mine").write_text("mine")
        path.symlink_to(tmp_path / "mine")

    with pytest.raises(UsageError, match=LOCK_FILE):
        RunLock(tmp_path).take()

    assert kind != "link" or (tmp_path / "mine").read_text() == "mine"


@pytest.fixture
def messages():
    return []


def test_lines_are_kept_in_order_until_the_file_can_be_written(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    files = LineFiles(messages.append)
    files.append(path, ["1\n"])
    path.rename(tmp_path / "before")
    path.mkdir()
    files.append(path, ["2\n"])
    files.append(path, ["3\n"])
    assert len(messages) == 1
    assert str(path) in messages[0]
    assert os.strerror(errno.EISDIR) in messages[0]
    path.rmdir()
    (tmp_path / "before").rename(path)
    files.append(path, ["4\n"])
    assert path.read_text() == "1\n2\n3\n4\n"
    assert len(messages) == 2
    files.close()
    assert len(messages) == 2


def test_lines_that_are_never_written_are_counted_at_the_end(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(messages.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    files.close()
    assert len(messages) == 2
    assert "3 lines" in messages[-1]
    assert os.strerror(errno.EISDIR) in messages[-1]


def test_lines_beyond_the_limit_are_counted_and_the_rest_is_written(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(messages.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    path.rmdir()
    files.close()
    assert path.read_text() == "1\n2\n"
    assert "1 line" in messages[-1]


def test_a_full_disk_leaves_no_partial_line(tmp_path, messages):
    with small_file_system(tmp_path / "disk", "64k") as grow:
        path = tmp_path / "disk" / "metrics.jsonl"
        files = LineFiles(messages.append)
        lines = [f"{number} {'x' * 1000}\n" for number in range(100)]
        for line in lines[:90]:
            files.append(path, [line])
        whole = path.read_text().splitlines(keepends=True)
        assert whole == lines[: len(whole)]
        assert len(whole) < 90
        assert os.strerror(errno.ENOSPC) in messages[0]
        grow("1m")
        files.append(path, lines[90:])
        assert path.read_text().splitlines(keepends=True) == lines


def test_a_deleted_run_folder_does_not_end_a_run(tmp_path, messages):
    folder = RunFolder(tmp_path / "run", messages.append)
    folder.path.mkdir()
    folder.steps([{"step": 1}])
    shutil.rmtree(folder.path)
    folder.steps([{"step": 2}])
    folder.ranks([{"step": 2}])
    folder.evaluation({"step": 2})
    folder.close()
    assert len(messages) == 6
