"""Finds the helpers of this process."""

import os
from pathlib import Path


def children(process: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def starters_of_this_process() -> list[int]:
    """Return the ids of the processes that start helpers: they are children of this process."""
    return children(os.getpid())


def helpers_of_this_process() -> list[int]:
    """Return the ids of the helpers: they are children of a child of this process."""
    return [helper for starter in starters_of_this_process() for helper in children(starter)]
