"""A run with helpers under one fault of each kind gives the undisturbed weights, or ends as `python` does."""

import random
import zlib

import pytest

from support.forked_commands import start
from support.helper_chaos import (
    ENDINGS,
    FAULTS,
    STEPS,
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
    moment = Moment(4, "a call") if fault in SHORT else drawn_moment(draw, STEPS - 12, fault)
    run = Run(kind, tmp_path / "run", workers=3, launch=launch)
    outcome = survived(run, Outcome(kind, 3, [fault]), draw, [moment])
    compared(outcome, run, whole(kind))
    assert outcome.wrong == [], (outcome.moments, outcome.said)


@pytest.mark.parametrize("fault", mostly_long(ENDINGS, SHORT_ENDINGS))
def test_the_end_of_a_run_ends_its_helpers(tmp_path, fault):
    """It would catch a helper that outlives the run, and an exit code that `python` would not have."""
    draw = random.Random(zlib.crc32(fault.encode()))
    run = Run("perceptron", tmp_path / "run", workers=3, launch=launch)
    outcome = ended(run, fault, drawn_moment(draw, STEPS - 12))
    assert outcome.wrong == [], (outcome.moments, outcome.said)
