"""Finds the real data sets, for tests that need them."""

import os
from pathlib import Path

import pytest

from samestep.base.folders import absolute

# Read at once: a test may run in another folder than the command.
_NAMED = absolute(os.environ["SAMESTEP_TEST_DATA"]) if os.environ.get("SAMESTEP_TEST_DATA") else None


def shared_data(name: str) -> Path:
    """Return the folder that holds the real data sets, among them `name`.

    It is the one named by ``SAMESTEP_TEST_DATA``, or ``../shared/data`` beside the repository. Skips the
    test where there is none, or fails it where ``SAMESTEP_REQUIRE`` lists `data`.
    """
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = _NAMED or beside
    if not (folder / name).is_dir():
        reason = f"{folder} holds no {name}: set SAMESTEP_TEST_DATA to a folder that does"
        if "data" in os.environ.get("SAMESTEP_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
