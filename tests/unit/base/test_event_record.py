"""A record keeps the last events and the stack of a worker, also after SIGKILL."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from samestep.base import event_record
from samestep.base.polling import holds_within


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(event_record, "temporary_directory", lambda: tmp_path)
    monkeypatch.setattr(event_record, "_here", event_record._Here())
    yield event_record.folder()
    event_record.end_record("")


def forked(work):
    """Return the id of a process that runs `work`, and then sleeps."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(ready[1], b".")
            time.sleep(60)
        finally:
            os._exit(0)
    return pid


ready = (0, 0)


@pytest.fixture
def worker():
    """Start a worker that has recorded 150 events; yield its process id."""
    global ready
    ready = os.pipe()

    def work():
        event_record.begin_record(1, 2, "train.py")
        for step in range(150):
            event_record.note(f"step {step}")

    pid = forked(work)
    os.read(ready[0], 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_last_events_of_a_live_worker_are_read_with_its_stack(worker, folder):
    (record,) = event_record.read_records(folder)

    assert (record.worker.rank, record.worker.size, record.worker.process.pid) == (1, 2, worker)
    assert record.life == "alive"
    assert [event.text for event in record.events] == [f"step {step}" for step in range(50, 150)]
    (stack,) = event_record.stacks_of([record])
    assert "forked" in [frame.function for frame in stack]


def test_a_stopped_worker_has_no_stack(worker, folder, monkeypatch):
    monkeypatch.setattr(event_record, "_ANSWER_S", 0.1)
    os.kill(worker, signal.SIGSTOP)
    (record,) = event_record.read_records(folder)
    assert event_record.stacks_of([record]) == [[]]


def become_sleep():
    os.write(ready[1], b".")
    os.execvp("sleep", ["sleep", "60"])


END = {"ended": lambda: event_record.end_record("ValueError"), "another program": become_sleep}


@pytest.mark.parametrize("how", END)
def test_no_worker_is_ended_by_a_request_for_its_stack(how, folder, monkeypatch):
    """Only this finds that a look at its stack ends a worker that writes none."""
    global ready
    ready = os.pipe()

    def work():
        event_record.begin_record(0, 1, "train.py")
        END[how]()

    monkeypatch.setattr(event_record, "_ANSWER_S", 0.1)
    pid = forked(work)
    os.read(ready[0], 1)
    if how == "another program":
        assert holds_within(lambda: b"sleep" in Path(f"/proc/{pid}/comm").read_bytes(), 10)
    (record,) = event_record.read_records(folder)
    (stack,) = event_record.stacks_of([record])
    assert bool(stack) == (how == "ended")
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_record_that_a_process_of_another_container_has_mapped_keeps_its_pages(folder):
    """Process ids recur in containers, which may share the folder."""
    event_record.begin_record(0, 1, "train.py")
    memory = event_record._here.memory
    event_record.begin_record(0, 1, "again.py")
    event_record.note("the last event")
    assert b"train.py" in memory[:4096]
    (record,) = event_record.read_records(folder)
    assert record.worker.script == "again.py"


def test_events_of_two_threads_have_a_place_each(folder):
    def work():
        for step in range(2000):
            event_record.note(f"step {step}")

    event_record.begin_record(0, 1, "train.py")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (record,) = event_record.read_records(folder)
    assert all(event.text for event in record.events)


def test_the_events_of_a_killed_process_are_kept(folder):
    pid = os.fork()
    if pid == 0:
        event_record.begin_record(0, 1, "train.py")
        event_record.note("the last event")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

    (record,) = event_record.read_records(folder)

    assert record.life == "dead"
    assert not record.is_complete
    assert record.events[-1].text == "the last event"


@pytest.mark.parametrize(("has_failed", "kept"), [(False, 0), (True, 1)])
def test_records_are_kept_after_a_failure_only(folder, has_failed, kept):
    event_record.begin_run()
    event_record.begin_record(0, 1, "train.py")
    event_record.end_record("ValueError" if has_failed else "")
    event_record.end_run(has_failed=has_failed)

    records = event_record.read_records(folder)
    assert len(records) == kept
    assert all(record.is_complete for record in records)


def test_a_worker_without_space_runs_without_a_record(monkeypatch, folder):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(event_record.os, "posix_fallocate", full)
    event_record.begin_record(0, 1, "train.py")
    event_record.note("nothing")
    assert event_record.read_records(folder) == []


def test_files_that_are_no_records_are_left_out(folder):
    folder.mkdir()
    (folder / "1.events").write_bytes(b"x" * 100_000)
    (folder / "2.events").write_text("")
    assert event_record.read_records(folder) == []


@pytest.mark.usefixtures("worker")
def test_a_live_worker_keeps_its_record_however_old_its_last_event_is(folder, monkeypatch):
    """Only this finds that a run which waits for a day loses its record to the next run."""
    monkeypatch.setattr(event_record, "_KEPT_S", -1.0)
    event_record.begin_record(0, 2, "train.py")
    assert {record.worker.rank for record in event_record.read_records(folder)} == {0, 1}
