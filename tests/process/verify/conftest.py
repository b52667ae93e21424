"""Provides one process that verifies the scripts of all tests."""

import pytest

from support.verifier import Verifier


@pytest.fixture(scope="session")
def verifier():
    """One process for all scripts of this folder."""
    kept = Verifier()
    yield kept
    kept.close()
