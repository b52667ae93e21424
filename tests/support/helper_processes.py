"""Finds the helpers of this process, which no list of the system has as those of this process."""

import gc

from samestep.autopilot.helpers.helper_processes import HelperProcesses


def _started() -> list[HelperProcesses]:
    found = [one for one in gc.get_objects() if type(one) is HelperProcesses]
    return [one for one in found if one._is_open]  # those of earlier tests are closed


def starters_of_this_process() -> list[int]:
    """Return the ids of the processes that start helpers."""
    return [one.starter for one in _started() if one.starter]


def helpers_of_this_process() -> list[int]:
    """Return the ids of the helpers."""
    return [helper for one in _started() for helper in one.helpers]
