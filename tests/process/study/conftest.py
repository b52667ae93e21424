"""One process verifies the scripts of all tests."""

import pytest

from support.verifier import Verifier


@pytest.fixture(scope="module")
def verifier():
    """One process for all scripts of a file."""
    kept = Verifier()
    yield kept
    kept.close()
