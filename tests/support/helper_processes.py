"""Finds the helpers of this process, which no list of the system has as those of this process."""

import gc
from pathlib import Path

from samestep.autopilot.helpers.helper_processes import HelperProcesses


def children(process: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def starters_of_this_process() -> list[int]:
    """Return the ids of the processes that start helpers."""
    return [one.starter for one in _of_this_process() if one.starter]


def helpers_of_this_process() -> list[int]:
    """Return the ids of the helpers."""
    return [helper for one in _of_this_process() for helper in one.helpers]


def _of_this_process() -> list[HelperProcesses]:
    return [one for one in gc.get_objects() if isinstance(one, HelperProcesses)]
