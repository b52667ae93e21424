"""A run with helpers under one fault of each kind gives the undisturbed weights, or ends as `python` does."""

import os
import pty
import random
import subprocess
import sys
import zlib

import pytest

from support.chaotic_script import CALLS
from support.commands import environment
from support.forked_commands import start
from support.helper_chaos import (
    ENDINGS,
    FAULTS,
    Moment,
    Outcome,
    Run,
    compared,
    drawn_moment,
    ended,
    survived,
)
from support.tiers import mostly_long


def launch(arguments, into):
    return start(*arguments, into=into, TMPDIR=str(into.parent))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed run of each kind, started when it is first asked for."""
    known = {}

    def found(kind):
        if kind not in known:
            folder = tmp_path_factory.mktemp("whole") / kind
            known[kind] = Run(kind, folder, workers=3, launch=launch)
            assert known[kind].await_end() == 0, known[kind].said
        return known[kind]

    return found


SHORT = "SIGKILL of a helper", "SIGKILL of the starter"
SHORT_ENDINGS = "SIGKILL of the main process", "SIGINT of all, as Ctrl-C"


@pytest.mark.parametrize("fault", mostly_long(FAULTS, SHORT))
def test_a_run_survives_the_loss_of_helpers(whole, tmp_path, fault):
    """It would catch a fault after which the run ends, hangs, differs, or leaves a process or a file."""
    draw = random.Random(zlib.crc32(fault.encode()))
    kind = "interrupted" if "catches" in fault else "convolutions"
    moment = Moment(4, "a call") if fault in SHORT else drawn_moment(draw, fault)
    run = Run(kind, tmp_path / "run", workers=3, launch=launch)
    outcome = survived(run, Outcome(kind, 3, [fault]), draw, [moment])
    compared(outcome, run, whole(kind))
    assert outcome.wrong == [], (outcome.moments, outcome.said)


@pytest.mark.parametrize("fault", mostly_long(ENDINGS, SHORT_ENDINGS))
def test_the_end_of_a_run_ends_its_helpers(tmp_path, fault):
    """It would catch a helper that outlives the run, and an exit code that `python` would not have."""
    draw = random.Random(zlib.crc32(fault.encode()))
    run = Run("perceptron", tmp_path / "run", workers=3, launch=launch)
    outcome = ended(run, fault, drawn_moment(draw, fault))
    assert outcome.wrong == [], (outcome.moments, outcome.said)


AT_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it
os.open(sys.argv[1], os.O_RDWR)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Opened by the leader of a session, a terminal becomes that of all of its processes."""


def test_a_closed_terminal_ends_the_run_by_its_signal(tmp_path):
    """The last line could not be written to the terminal, and the exit code was that of this error."""
    keyboard, terminal = pty.openpty()

    def at_the_terminal(arguments, into):
        command = [
            sys.executable,
            "-c",
            AT_A_TERMINAL,
            os.ttyname(terminal),
            sys.executable,
            "-m",
            "samestep",
        ]
        # A print of the script would fail if the terminal closes just before the signal is sent.
        streams = {"stdin": terminal, "stdout": subprocess.DEVNULL, "stderr": terminal}
        variables = environment(TMPDIR=str(into.parent))
        return subprocess.Popen([*command, *arguments], env=variables, start_new_session=True, **streams)

    run = Run("perceptron", tmp_path / "run", workers=3, steps=10_000, launch=at_the_terminal)
    os.close(terminal)
    try:
        run.await_phase(1, CALLS)
        os.close(keyboard)
        assert (run.await_end(), run.left()) == (129, [])
    finally:
        run.end()
