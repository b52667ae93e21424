"""Runs a training of a few lines with all checks attached."""

import pytest
import torch

from samestep.verify.observers.check import Checks
from samestep.verify.observers.table import CHECKS


@pytest.fixture
def noted():
    """Return a function that runs a script and returns the codes of its notes."""

    def run(script):
        torch.manual_seed(0)
        checks = Checks(CHECKS)
        with checks.attached():
            script()
        return [note.code for note in checks.notes()]

    return run
