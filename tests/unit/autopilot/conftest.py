"""Fixtures of the tests of serial scripts."""

import sys

import pytest


@pytest.fixture
def _frequent_switches():
    """Make the interpreter switch between threads very often, so that races occur."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
