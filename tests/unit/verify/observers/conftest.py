"""Runs a training of a few lines with all checks attached."""

from linecache import getline

import pytest
import torch

from samestep.verify.observers.check import Checks
from samestep.verify.probed_run import CHECKS


@pytest.fixture
def noted():
    """Return a function that runs a script and returns the codes of its notes."""
    return lambda script: [note.code for note in notes_on(script)]


@pytest.fixture
def named_line():
    """Return a function that runs a script and returns the line that its only note names."""

    def run(script):
        (note,) = notes_on(script)
        return getline(*note.place)

    return run


def notes_on(script):
    torch.manual_seed(0)
    checks = Checks(CHECKS)
    with checks.attached():
        script()
    return list(checks.notes())
