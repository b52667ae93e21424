import io
import os
import sys
from pathlib import Path

import pytest

from samestep.base.polling import holds_within
from samestep.launch.job import STDERR, STDOUT, Logs, Std
from samestep.launch.local import output
from samestep.launch.local.output import (
    OutputFlush,
    Route,
    Stream,
    flush_buffers,
    log_folder,
    route,
    withdraw,
)

FOLDER = Path("logs/r/attempt_0/1")


def way(logs, stream=STDOUT, folder=FOLDER):
    return route(logs, folder, stream=stream, rank=5, local_rank=1)


def test_output_has_no_file_and_no_prefix_by_default():
    assert way(Logs(), folder=None) == Route()
    assert not Route().passes_through


def test_with_a_folder_output_is_printed_and_copied_to_a_file():
    assert way(Logs(folder=Path("logs"))) == Route(file=FOLDER / "stdout.log")


def test_redirected_output_is_not_printed():
    logs = Logs(folder=Path("logs"), redirects=Std.parse("-r", "2"))

    assert way(logs, STDERR) == Route(console=False, file=FOLDER / "stderr.log")
    assert not way(logs, STDERR).passes_through
    assert way(logs, STDOUT) == Route()


def test_teed_output_gets_the_rank_as_prefix():
    assert way(Logs(tee=Std.parse("-t", "1")), folder=None) == Route(prefix="[rank5]: ")
    assert way(Logs(tee=Std.parse("-t", "0:1")), folder=None) == Route()


def test_each_restart_has_its_own_log_folder():
    logs = Logs(folder=Path("logs"))

    assert log_folder(logs, "r", restarts=2, local_rank=1) == Path("logs/r/attempt_2/1")
    assert log_folder(Logs(), "r", restarts=0, local_rank=0) is None


def opened(route):
    stream = Stream(STDOUT, route)
    stream.open()
    return stream


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_stream_prints_complete_lines_and_writes_every_byte_to_the_file(tmp_path, capfdbinary, prefix):
    stream = opened(Route(file=tmp_path / "a" / "stdout.log", prefix=prefix))
    worker = os.dup(stream.write)
    stream.after_fork()

    os.write(worker, b"one\ntw")
    assert stream.pump() == 6
    assert capfdbinary.readouterr().out == f"{prefix}one\n".encode()
    os.write(worker, b"o\r50%\rlast")
    os.close(worker)
    stream.close()

    # Without a mark nothing is added; with one, another rank's line may come next.
    mark, end = prefix.encode(), b"\n" if prefix else b""
    assert capfdbinary.readouterr().out == mark + b"two\r" + mark + b"50%\r" + mark + b"last" + end
    assert (tmp_path / "a" / "stdout.log").read_bytes() == b"one\ntwo\r50%\rlast"


def test_closing_does_not_wait_for_another_process_that_has_the_stream_open(tmp_path, capfdbinary):
    stream = opened(Route(file=tmp_path / "out.log"))
    still_open = os.dup(stream.write)
    stream.after_fork()
    os.write(still_open, b"text")

    stream.close()

    assert capfdbinary.readouterr().out == b"text"
    os.close(still_open)


def test_a_line_that_arrives_in_parts_is_printed_as_one(tmp_path, capfdbinary):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    for piece in (b"a", b"b", b"c\nd"):
        os.write(stream.write, piece)
        stream.pump()
        assert stream.pump() is None

    assert capfdbinary.readouterr().out == b"[rank0]: abc\n"
    stream.close()
    assert capfdbinary.readouterr().out == b"[rank0]: d\n"


def test_with_a_closed_console_the_output_is_still_written_to_the_file(tmp_path, monkeypatch):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    os.write(stream.write, b"text\n")
    monkeypatch.setattr("sys.stdout", None)

    stream.close()

    assert (tmp_path / "out.log").read_bytes() == b"text\n"


def test_a_full_console_does_not_end_a_run_with_log_files(tmp_path, monkeypatch, capfd):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        for _ in range(2):
            os.write(stream.write, b"text\n")
            stream.pump()

    assert (tmp_path / "out.log").read_bytes() == b"text\ntext\n"
    assert capfd.readouterr().err.count(str(tmp_path / "out.log")) == 1
    monkeypatch.undo()
    stream.close()


def test_a_full_console_that_alone_gets_the_output_fails_once(monkeypatch):
    stream = opened(Route(prefix="[rank0]: "))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        os.write(stream.write, b"text\n")
        with pytest.raises(OSError, match="space"):
            stream.pump()
        os.write(stream.write, b"text\n")
        assert stream.pump() == 5  # else the end of the workers would fail, too
    monkeypatch.undo()
    stream.close()


def test_a_stream_lists_its_descriptors_and_closes_them_all(tmp_path):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    files = stream.files
    assert len(files) == 3

    stream.close()

    assert stream.files == set()
    for fd in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_on_a_full_disk_output_is_still_printed_and_the_error_is_reported_once(capfdbinary):
    stream = opened(Route(file=Path("/dev/full"), prefix="[rank0]: "))
    for piece in (b"a\n", b"b\n"):
        os.write(stream.write, piece)
        assert stream.pump() == 2
    stream.append("end")
    stream.close()

    shown = capfdbinary.readouterr()
    assert shown.out == b"[rank0]: a\n[rank0]: b\n"
    assert shown.err.count(b"/dev/full") == 1


class Counting(io.TextIOWrapper):
    """A program's own stream, whose code must not run."""

    flushed = 0

    def flush(self):
        self.flushed += 1


@pytest.fixture
def flush(monkeypatch):
    """Yield the requests for two workers, where this process may be one of them."""
    monkeypatch.setattr(output, "_here", [])
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
