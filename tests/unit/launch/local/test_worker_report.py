import os
import socket

import pytest

from samestep.launch.local.child import Report, ReportPipe, received
from samestep.launch.local.hosting import Ending
from samestep.ranks.rendezvous.free_port import reserved_port


def through_a_pipe(report):
    read, write = os.pipe()
    ReportPipe.of(write).send(report)
    with os.fdopen(read, "rb") as pipe:
        return bytearray(pipe.read())


def test_a_report_is_there_once_it_is_whole():
    report = Report(ending=Ending(exit_code=3, error="ValueError", message="no"), result=[1, 2])
    data = through_a_pipe(report)

    assert [received(data[:end]) for end in range(len(data))] == [None] * len(data)
    assert received(data) == report
    assert (data, received(data)) == (b"", None)


def test_a_result_that_cannot_travel_is_told_as_a_failure():
    report = received(through_a_pipe(Report(ending=Ending(), result=lambda: None)))

    assert report.ending.exit_code == 1
    assert "type function cannot be pickled" in report.ending.message


class Fussy:
    """Travels, but does not arrive: as an exception whose __init__ wants more than its message."""

    def __reduce__(self):
        return int, ("not a number",)


def test_a_result_that_cannot_arrive_is_told_as_a_failure_that_names_its_type():
    report = received(through_a_pipe(Report(ending=Ending(), result=Fussy())))

    assert report.ending.exit_code == 1
    assert "type Fussy cannot be unpickled: ValueError: invalid literal" in report.ending.traceback


FAILED = Ending(exit_code=1, error="ValueError", message="no", traceback="Traceback: no\n")


def test_what_is_foretold_comes_before_the_last_word():
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    pipe.send_provisional(FAILED)
    pipe.send(Report(ending=FAILED, result=3))
    with os.fdopen(read, "rb") as pipe:
        data = bytearray(pipe.read())

    assert received(data) == Report(ending=FAILED, final=False)
    assert received(data) == Report(ending=FAILED, result=3)


def test_a_program_that_closed_the_pipe_tells_its_error_itself(capsys):
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    os.close(write)
    pipe.send_provisional(FAILED)
    assert capsys.readouterr().err == ""

    pipe.send(Report(ending=FAILED))

    assert capsys.readouterr().err == "Traceback: no\n"
    os.close(read)


def test_a_file_that_took_the_pipes_number_is_not_written_to(tmp_path, capsys):
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    theirs = tmp_path / "theirs"
    with theirs.open("wb") as file:
        os.dup2(file.fileno(), write)

    pipe.send(Report(ending=FAILED))

    assert theirs.read_bytes() == b""
    assert capsys.readouterr().err == "Traceback: no\n"
    os.close(read)
    os.close(write)


def test_a_copy_forked_by_the_program_does_not_speak_for_the_worker(monkeypatch, capsys):
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: -1)
        pipe.send(Report(ending=FAILED))
    os.close(write)

    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""
    assert capsys.readouterr().err == "Traceback: no\n"


def test_a_reserved_port_is_free_for_who_shares_and_for_nobody_else():
    with reserved_port() as holder:
        _, port = holder.getsockname()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", port))
            store.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
