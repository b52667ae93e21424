"""Processes that workers fork are ended if their launcher is killed, and kept if it ends by itself."""

import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from samestep.launch.local import orphans
from samestep.launch.local.orphans import Lifeline

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")


def launcher(folder, *, kill, own_session=False):
    """Run a launcher, its worker and a fork of that; return whether the fork outlives the launcher."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(read)
        _launch(folder, write, kill=kill, own_session=own_session)
    os.close(write)
    os.waitpid(first, 0)
    below = int(os.read(read, 16))
    # The pipe is closed once the last of them has ended.
    os.set_blocking(read, False)
    try:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                if os.read(read, 1) == b"":
                    return False
            time.sleep(0.005)
        return True
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(below, signal.SIGKILL)


def _launch(folder, write, *, kill, own_session):
    line = Lifeline(folder)
    worker = os.fork()
    if worker == 0:
        line.hold()
        ready, armed = os.pipe()
        below = os.fork()
        if below == 0:
            if own_session:
                os.setsid()
                below = os.fork()
                if below:
                    os._exit(0)
            os.write(armed, b"1")
            os.write(write, str(os.getpid()).encode())
            time.sleep(20)
            os._exit(0)
        os.read(ready, 1)
        os._exit(0)
    os.waitpid(worker, 0)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    line.close()
    os._exit(0)


@pytest.mark.parametrize(
    ("kill", "own_session", "survives"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_processes_that_a_worker_forks_end_with_a_killed_launcher(tmp_path, kill, own_session, survives):
    assert launcher(tmp_path, kill=kill, own_session=own_session) is survives


def test_forked_processes_end_without_a_folder_for_their_records_too():
    assert launcher(None, kill=True) is False


def test_each_worker_has_its_own_folder_for_sockets_of_multiprocessing(tmp_path):
    line = Lifeline(tmp_path)
    folders = {_sockets_folder(line) for _ in range(2)}
    line.close()

    assert len(folders) == 2
    assert {Path(folder).parent for folder in folders} == {tmp_path}


def test_workers_share_no_folder_of_an_ancestor_for_sockets(tmp_path, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", str(tmp_path / "ancestor"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    line = Lifeline(tmp_path / ("long" * 20))  # too long for a folder of its own
    folders = {_sockets_folder(line) for _ in range(2)}
    line.close()

    assert len(folders) == 2
    assert str(tmp_path / "ancestor") not in folders


def _sockets_folder(line):
    """Return the folder in which multiprocessing creates the sockets of a worker."""
    read, write = os.pipe()
    worker = os.fork()
    if worker == 0:
        line.hold()
        os.write(write, multiprocessing.util.get_temp_dir().encode())
        os._exit(0)
    os.close(write)
    os.waitpid(worker, 0)
    with os.fdopen(read) as stream:
        return stream.read()


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(orphans, "_GRACE_S", 0.5)
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE) as stubborn:
        stubborn.stdout.readline()
        orphans.end_all([psutil.Process(stubborn.pid)], ended=set())
        is_alive = psutil.pid_exists(stubborn.pid)
        stubborn.kill()
    assert not is_alive
