"""A failure is one line on stderr, and with ``--json`` one document on stdout; Ctrl-C is one too."""

import errno
import io
import json
import os
import signal
import sys

import pytest

from samestep.base import env
from samestep.base.errors import INTERRUPTED, PREEMPTED, PeerLost, WorkerFailed
from samestep.cli import data, doctor
from samestep.cli.failures import Failure, asks_json, is_reporting
from samestep.cli.main import run_command
from support.recordings import recording


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "missing.py", "--json"],
        ["scale", "missing.py", "--json"],
        ["scale", "--stepz", "3", "--json"],
        ["report", "missing", "--json"],
        ["train", "missing", "--json"],
        ["bench", "step", "-n", "0", "--json"],
        ["bench", "step", "-n", "two", "--json"],
        ["bench", "all-reduse", "--json"],
        ["data", "check", "missing", "--json"],
        ["doctor", "--wait", "-1", "--json"],
        ["submit", "slurm", "--json", "missing.py"],
        ["lab", "grade", "missing.py", "--json"],
        ["missing", "--json"],
    ],
)
def test_an_error_is_a_document_with_json(capsys, words):
    assert run_command(words) == 2

    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["code"], error["exit_code"]) in {("usage-error", 2), ("data-error", 2)}
    assert captured.err.startswith("samestep: error: ")
    assert error["message"]


def test_an_unexpected_error_is_a_document_too(capsys, monkeypatch):
    def fail(folder):
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr(data, "_listed", fail)
    with pytest.raises(ZeroDivisionError):
        run_command(["data", "list", "--json"])
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": "zero-division-error",
        "message": "unexpected",
        "exit_code": 1,
    }


@pytest.mark.parametrize(
    ("verb", "words", "asks"),
    [
        ("verify", ["verify", "train.py", "--json"], True),
        ("verify", ["verify", "train.py", "--", "--json"], False),
        ("run", ["run", "train.py", "--json"], False),
        ("submit", ["submit", "slurm", "--json", __file__], True),
        ("submit", ["submit", "slurm", __file__, "--json"], False),
    ],
)
def test_only_words_of_samestep_ask_for_json(verb, words, asks):
    assert asks_json(verb, words) == asks


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (PeerLost("rank 1"), "peer-lost", 1),
        (WorkerFailed("rank 1", exit_code=7), "worker-failed", 7),
        (KeyboardInterrupt(), "interrupted", INTERRUPTED),
    ],
)
def test_a_failure_has_the_name_of_its_exception(error, code, exit_code):
    failure = Failure.of(error)
    assert (failure.code, failure.exit_code) == (code, exit_code)


@pytest.mark.parametrize(
    ("code", "name"),
    [(0, None), (1, None), (9, "worker-failed"), (INTERRUPTED, "interrupted"), (PREEMPTED, "preempted")],
)
def test_the_failure_of_workers_is_printed_by_their_launcher(capsys, monkeypatch, code, name):
    monkeypatch.setattr(doctor, "execute", lambda decision: code)

    assert run_command(["doctor", "-n", "2", "--json"]) == code
    out = capsys.readouterr().out
    assert (json.loads(out)["error"]["code"] if out else None) == name


@pytest.mark.parametrize(
    ("name", "reports"), [("slurm_step_2x2_rank3", False), ("torchrun_one_host_rank1", False), (None, True)]
)
def test_one_process_of_several_prints(monkeypatch, name, reports):
    variables = dict(recording(name).environment) if name else {}
    monkeypatch.setattr(env, "snapshot", lambda: variables)
    assert is_reporting() == reports


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_is_one_line(capsys, monkeypatch, flags):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "_listed", interrupted)
    assert run_command(["data", "list", *flags]) == INTERRUPTED

    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert (json.loads(captured.out)["error"]["code"] == "interrupted") if flags else not captured.out


def test_ctrl_c_during_an_import_of_a_command_is_one_line_and_one_document():
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.dup2(to_out, 1)
        os.dup2(to_err, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, Interrupting())
        sys.modules.pop("samestep.cli.data", None)
        run_command(["data", "list", "--json"])
        os._exit(1)
    for end in (to_out, to_err):
        os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == INTERRUPTED
    with os.fdopen(out) as printed, os.fdopen(err) as logged:
        assert json.loads(printed.read())["error"]["code"] == "interrupted"
        assert len(logged.readlines()) == 1


class Interrupting:
    """Interrupts this process when it imports the module of a verb."""

    def find_spec(self, fullname, path, target=None):
        if fullname == "samestep.cli.data":
            os.kill(os.getpid(), signal.SIGINT)


def test_a_reader_that_ends_early_ends_the_command(monkeypatch):
    def broken(folder):
        raise BrokenPipeError

    monkeypatch.setattr("samestep.cli.main.discard_output", lambda: None)
    monkeypatch.setattr(data, "_listed", broken)
    assert run_command(["data", "list"]) == 1


@pytest.mark.parametrize("is_json", [False, True])
def test_a_result_that_cannot_be_written_is_one_line(monkeypatch, capsys, is_json):
    """A full disk has no file name in its error, and the document of `--json` cannot be written there."""

    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sys.stdout", Full())

    assert run_command(["data", "list", *["--json"] * is_json]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert os.strerror(errno.ENOSPC) in line
