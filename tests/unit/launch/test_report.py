import os
import socket

import pytest

from samestep.launch.backends.local import reserved_port
from samestep.launch.hosting import Ending
from samestep.launch.report import Report, received, send


def through_a_pipe(report):
    read, write = os.pipe()
    send(write, report)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def test_a_report_is_there_once_it_is_whole():
    report = Report(ending=Ending(exit_code=3, error="ValueError", message="no"), result=[1, 2])
    data = through_a_pipe(report)

    assert received(data) == report
    assert [received(data[:end]) for end in range(len(data))] == [None] * len(data)


def test_a_result_that_cannot_travel_is_told_as_a_failure():
    report = received(through_a_pipe(Report(ending=Ending(), result=lambda: None)))

    assert report.ending.exit_code == 1
    assert "function cannot be pickled" in report.ending.message


def test_a_reserved_port_is_free_for_who_shares_and_for_nobody_else():
    with reserved_port() as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", port))
            store.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
