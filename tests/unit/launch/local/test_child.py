"""Exceptions of finalizers in the process of a worker are reported."""

import os
import socket
import sys
from types import SimpleNamespace

import pytest

from samestep.base.place import Place
from samestep.launch.job import Program
from samestep.launch.local import child
from samestep.launch.local.child import (
    Report,
    ReportPipe,
    Start,
    entry_of,
    has_common_group,
    received,
    report_unless_interrupted,
)
from samestep.launch.local.hosting import Ending
from samestep.ranks.rendezvous.free_port import reserved_port


class Finalized:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.mark.parametrize(("error", "is_reported"), [(KeyboardInterrupt(), False), (ValueError("x"), True)])
def test_an_error_of_a_finalizer_is_reported_unless_it_is_ctrl_c(monkeypatch, capsys, error, is_reported):
    monkeypatch.setattr(sys, "unraisablehook", report_unless_interrupted)
    Finalized(error)

    assert ("Finalized" in capsys.readouterr().err) is is_reported


C10D = "torch.distributed.distributed_c10d"


@pytest.fixture
def traces(monkeypatch):
    """Return a function that sets the state of torch.distributed in this process."""

    def leave(method, *, initialised=False, hook=sys.__excepthook__):
        state = SimpleNamespace(_default_pg_init_method=method, is_initialized=lambda: initialised)
        for name in ("samestep.ranks.world.join", "torch.distributed.rpc"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, C10D, state)
        monkeypatch.setattr(sys, "excepthook", hook)

    return leave


def test_a_worker_without_a_trace_of_a_group_has_not_joined_its_peers(traces):
    traces(None)
    assert not has_common_group(2)
    assert has_common_group(1)


@pytest.mark.parametrize(
    "trace",
    [
        {"method": "env://"},
        {"method": None, "initialised": True},
        # A group made with `store=` has no method; its excepthook outlives it.
        {"method": None, "hook": lambda *_: None},
    ],
)
def test_a_worker_with_any_trace_of_a_group_has_joined_its_peers(traces, trace):
    traces(**trace)
    assert has_common_group(2)


def test_math_kernels_are_settled_before_the_program_starts(monkeypatch):
    done = []
    monkeypatch.setattr(child, "seed_generators", lambda: None)
    monkeypatch.setattr(child, "settle_math_kernels", lambda: done.append("settled"))

    def watch(*_):
        done.append("program")
        return Ending()

    entry_of(Program(target="train.py"), watch=watch)(
        Start(place=Place(), variables={}), ReportPipe(-1, os.getpid(), (0, 0))
    )
    assert done == ["settled", "program"]


def through_a_pipe(report):
    read, write = os.pipe()
    ReportPipe.of(write).send(report)
    with os.fdopen(read, "rb") as pipe:
        return bytearray(pipe.read())


def test_a_report_is_returned_once_all_its_bytes_have_arrived():
    report = Report(ending=Ending(exit_code=3, error="ValueError", message="no"), result=[1, 2])
    data = through_a_pipe(report)

    assert [received(data[:end]) for end in range(len(data))] == [None] * len(data)
    assert received(data) == report
    assert (data, received(data)) == (b"", None)


def test_a_result_that_cannot_be_pickled_is_reported_as_a_failure():
    report = received(through_a_pipe(Report(ending=Ending(), result=lambda: None)))

    assert report.ending.exit_code == 1
    assert "type function cannot be pickled" in report.ending.message


class CannotBeUnpickled:
    """A value that can be pickled but not unpickled, like an exception whose __init__ has more arguments."""

    def __reduce__(self):
        return int, ("not a number",)


def test_a_result_that_cannot_be_unpickled_is_reported_as_a_failure_with_its_type():
    report = received(through_a_pipe(Report(ending=Ending(), result=CannotBeUnpickled())))

    assert report.ending.exit_code == 1
    assert (
        "type CannotBeUnpickled cannot be unpickled: ValueError: invalid literal" in report.ending.traceback
    )


FAILED = Ending(exit_code=1, error="ValueError", message="no", traceback="Traceback: no\n")


def test_a_provisional_report_is_received_before_the_final_one():
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    pipe.send_provisional(FAILED)
    pipe.send(Report(ending=FAILED, result=3))
    with os.fdopen(read, "rb") as pipe:
        data = bytearray(pipe.read())

    assert received(data) == Report(ending=FAILED, final=False)
    assert received(data) == Report(ending=FAILED, result=3)


def test_a_program_that_closed_the_pipe_prints_its_error(capsys):
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    os.close(write)
    pipe.send_provisional(FAILED)
    assert capsys.readouterr().err == ""

    pipe.send(Report(ending=FAILED))

    assert capsys.readouterr().err == "Traceback: no\n"
    os.close(read)


def test_a_file_that_reuses_the_descriptor_of_the_pipe_is_not_written_to(tmp_path, capsys):
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


def test_a_process_forked_by_the_program_does_not_report_for_the_worker(monkeypatch, capsys):
    read, write = os.pipe()
    pipe = ReportPipe.of(write)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: -1)
        pipe.send(Report(ending=FAILED))
    os.close(write)

    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""
    assert capsys.readouterr().err == "Traceback: no\n"


def test_a_reserved_port_can_be_bound_only_by_a_socket_that_shares_it():
    with reserved_port() as holder:
        _, port = holder.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", port))
            store.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
