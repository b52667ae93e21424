"""Systems that a test needs and a machine may lack."""

import os
import shutil
from typing import NoReturn

import pytest


def required(system: str) -> bool:
    """Return whether ``SAMESTEP_REQUIRE`` names `system`: then it must not be missing."""
    return system in os.environ.get("SAMESTEP_REQUIRE", "").split(",")


def missing(system: str, reason: str) -> NoReturn:
    """Skip the test for `reason`; fail it where `system` is required."""
    if required(system):
        pytest.fail(reason)
    pytest.skip(reason)


def program(system: str, *names: str) -> str:
    """Return the path of the first of the programs `names` that is there; else skip, or fail if required."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        missing(system, f"{system} is not installed: none of {', '.join(names)} is on the PATH")
    return found
