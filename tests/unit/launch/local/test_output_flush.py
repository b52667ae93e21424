import io
import os
import sys

import pytest

from samestep.base.polling import holds_within
from samestep.launch.local import output_flush
from samestep.launch.local.output_flush import OutputFlush, flush_buffers, withdraw


class Counting(io.TextIOWrapper):
    """A program's own stream, whose code must not run."""

    flushed = 0

    def flush(self):
        self.flushed += 1


@pytest.fixture
def flush(monkeypatch):
    """Yield the requests for two workers, where this process may be one of them."""
    monkeypatch.setattr(output_flush, "_here", [])
    made = OutputFlush(2)
    yield made
    made.close()


def test_a_worker_writes_its_output_and_files_when_it_is_asked(flush, tmp_path):
    if (pid := os.fork()) == 0:
        flush.use_here(1)
        sys.stdout = (tmp_path / "out").open("w")
        log = (tmp_path / "log").open("w")
        print("a line")
        log.write("in a file")
        (tmp_path / "ready").touch()
        while True:  # a program that goes on
            sum(range(1000))
    assert holds_within((tmp_path / "ready").exists, 20)
    assert [flush.is_awaited(worker) for worker in (0, 1)] == [False, True]
    assert (tmp_path / "log").read_text() == ""

    flush.request()

    assert holds_within(lambda: not flush.is_awaited(1), 20)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert (tmp_path / "out").read_text() == "a line\n"
    assert (tmp_path / "log").read_text() == "in a file"


def test_a_worker_that_is_replaced_by_a_program_is_not_awaited(flush):
    if (pid := os.fork()) == 0:
        flush.use_here(0)
        withdraw()
        os._exit(0)
    os.waitpid(pid, 0)

    assert not flush.is_awaited(0)


def test_streams_of_the_programs_classes_are_left_out(monkeypatch, tmp_path):
    own = Counting(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", own)
    monkeypatch.setattr(sys, "stderr", None)
    with (tmp_path / "log").open("w") as log:
        log.write("in a file")
        flush_buffers()
        assert (tmp_path / "log").read_text() == "in a file"
    assert own.flushed == 0
