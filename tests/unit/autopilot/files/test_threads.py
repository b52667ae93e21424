"""Threads of one script that access files at the same time."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.files.overlay_lookup import locked

pytestmark = pytest.mark.usefixtures("_frequent_switches")

THREADS = 6


def in_threads(function):
    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(function, range(THREADS))]


def test_threads_append_to_one_file_from_before_the_run(tmp_path):
    for attempt in range(20):
        file = tmp_path / f"log{attempt}"
        file.write_text("before\n")
        with redirected(Overlay(tmp_path / f"overlay{attempt}")):
            (tmp_path / f"overlay{attempt}").mkdir()
            in_threads(lambda number, file=file: _append(file, f"{number}\n"))
            seen = file.read_text()
        assert sorted(seen.split()) == sorted(["before", *map(str, range(THREADS))])
        assert file.read_text() == "before\n"


def test_a_process_that_is_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    lock, (ends, end) = str(tmp_path / "lock"), os.pipe()
    with locked(lock):
        child = os.fork()
        if not child:
            os.close(end)
            os.read(ends, 1)
            os._exit(0)
    os.close(ends)
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(end)
    os.waitpid(child, 0)


def _append(file, text):
    with open(file, "a") as opened:
        opened.write(text)
