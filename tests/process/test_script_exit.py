"""A process that exits within a script flushes files and runs exit functions, for a limited time."""

import atexit
import gzip
import multiprocessing
import signal
import sys
import threading
from pathlib import Path

import pytest

from samestep.launch.local.hosting import exit_process, leave
from support import process_pool  # noqa: F401 - it sets what the fork server loads


def writing(folder):
    text, binary = (folder / "text").open("w"), (folder / "binary").open("wb")
    packed = gzip.open(folder / "packed.gz", "wt")  # noqa: SIM115 - open at the end
    text.write("loss 0.5\n")
    binary.write(b"loss")
    packed.write("loss 0.5\n")
    atexit.register(lambda: text.write("the end\n"))
    exit_process()


def waiting(folder):
    signal.alarm(60)  # of a process that does not end
    log = (folder / "text").open("w")
    log.write("loss 0.5\n")
    atexit.register(threading.Event().wait)
    exit_process(2, limit_s=0.05)


def failing(folder):
    class Broken:
        @property
        def __class__(self):
            raise RuntimeError("not one to look at")

    log, broken = (folder / "text").open("w"), Broken()
    log.write("loss 0.5\n")
    atexit.register(lambda: 1 / 0)
    exit_process()
    del broken


@pytest.mark.parametrize(
    ("script", "exit_code", "text"),
    [(writing, 0, "loss 0.5\nthe end\n"), (waiting, 2, "loss 0.5\n"), (failing, 0, "loss 0.5\n")],
)
def test_files_are_flushed_and_exit_functions_run_for_a_limited_time(tmp_path, script, exit_code, text):
    process = multiprocessing.get_context("forkserver").Process(target=script, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == exit_code
    assert (tmp_path / "text").read_text() == text
    if script is writing:
        assert (tmp_path / "binary").read_bytes() == b"loss"
        with gzip.open(tmp_path / "packed.gz", "rt") as packed:
            assert packed.readline() == "loss 0.5\n"


def printing_to(path):
    sys.stdout = Path(path).open("w")  # noqa: SIM115 - open at the end
    print("loss 0.5")
    leave(0)


@pytest.mark.parametrize(("path", "exit_code"), [("/dev/full", 120), ("/dev/null", 0)])
def test_output_that_cannot_be_written_at_the_end_is_a_failure(path, exit_code):
    """Only this finds a log that a full disk has cut, of a run that has succeeded."""
    process = multiprocessing.get_context("forkserver").Process(target=printing_to, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == exit_code
