"""Fixtures of the tests of serial scripts."""

import sys

import pytest


@pytest.fixture
def _frequent_switches():
    """Let the interpreter switch between threads all the time, so that a race shows itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
