import os
from pathlib import Path

import pytest

from samestep.launch.job import STDERR, STDOUT, Logs, Std
from samestep.launch.local.output import Route, Stream, log_folder, route

FOLDER = Path("logs/r/attempt_0/1")


def way(logs, stream=STDOUT, folder=FOLDER):
    return route(logs, folder, stream=stream, rank=5, local_rank=1)


def test_output_is_left_alone_unless_asked_for():
    assert way(Logs(), folder=None) == Route()
    assert not Route().passes_through


def test_a_folder_alone_keeps_the_console_and_a_copy():
    assert way(Logs(folder=Path("logs"))) == Route(file=FOLDER / "stdout.log")


def test_redirected_output_leaves_the_console():
    logs = Logs(folder=Path("logs"), redirects=Std.parse("-r", "2"))

    assert way(logs, STDERR) == Route(console=False, file=FOLDER / "stderr.log")
    assert not way(logs, STDERR).passes_through
    assert way(logs, STDOUT) == Route()


def test_teed_output_is_marked_with_its_rank():
    assert way(Logs(tee=Std.parse("-t", "1")), folder=None) == Route(prefix="[rank5]: ")
    assert way(Logs(tee=Std.parse("-t", "0:1")), folder=None) == Route()


def test_each_round_has_its_own_folder():
    logs = Logs(folder=Path("logs"))

    assert log_folder(logs, "r", restarts=2, local_rank=1) == Path("logs/r/attempt_2/1")
    assert log_folder(Logs(), "r", restarts=0, local_rank=0) is None


def opened(route):
    stream = Stream(STDOUT, route)
    stream.open()
    return stream


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_stream_shows_whole_lines_and_keeps_every_byte(tmp_path, capfdbinary, prefix):
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


def test_closing_does_not_wait_for_who_still_holds_the_stream(tmp_path, capfdbinary):
    stream = opened(Route(file=tmp_path / "out.log"))
    left_behind = os.dup(stream.write)
    stream.after_fork()
    os.write(left_behind, b"said")

    stream.close()

    assert capfdbinary.readouterr().out == b"said"
    os.close(left_behind)


def test_a_line_in_many_pieces_is_shown_as_one(tmp_path, capfdbinary):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    for piece in (b"a", b"b", b"c\nd"):
        os.write(stream.write, piece)
        stream.pump()
        assert stream.pump() is None

    assert capfdbinary.readouterr().out == b"[rank0]: abc\n"
    stream.close()
    assert capfdbinary.readouterr().out == b"[rank0]: d\n"


def test_a_closed_console_shows_nothing_and_the_file_has_it(tmp_path, monkeypatch):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    os.write(stream.write, b"said\n")
    monkeypatch.setattr("sys.stdout", None)

    stream.close()

    assert (tmp_path / "out.log").read_bytes() == b"said\n"


def test_a_stream_knows_its_descriptors_and_closes_them_all(tmp_path):
    stream = opened(Route(file=tmp_path / "out.log", prefix="[rank0]: "))
    files = stream.files
    assert len(files) == 3

    stream.close()

    assert stream.files == set()
    for fd in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_full_disk_ends_the_file_and_not_the_output(capfdbinary):
    stream = opened(Route(file=Path("/dev/full"), prefix="[rank0]: "))
    for piece in (b"a\n", b"b\n"):
        os.write(stream.write, piece)
        assert stream.pump() == 2
    stream.append("end")
    stream.close()

    shown = capfdbinary.readouterr()
    assert shown.out == b"[rank0]: a\n[rank0]: b\n"
    assert shown.err.count(b"/dev/full") == 1
