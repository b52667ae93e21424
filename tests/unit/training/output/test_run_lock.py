"""One process writes to a run folder: its lock ends with it, and no child process keeps the lock."""

import errno
import fcntl
import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from samestep.base.errors import UsageError
from samestep.training.output.run_folder import LOCK_FILE, RunLock


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
