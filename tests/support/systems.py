"""Finds systems that a test needs; skips or fails the test if the machine lacks them."""

import os
import shutil
import subprocess
from contextlib import contextmanager
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


@contextmanager
def small_file_system(folder, size: str):
    """Mount a file system in memory at `folder`, of a size that grows when the returned function is called.

    Skips where none can be mounted, or fails if ``tmpfs`` is required.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        missing("tmpfs", f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield lambda larger: subprocess.run(
            ["mount", "-o", f"remount,size={larger}", str(folder)], check=True, capture_output=True
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
