"""Lets rank 0 alone record in experiment trackers: on other ranks, each tracker's own switch disables it.

A tracker that starts a process or a thread of its own does not see the files and requests that the ranks
share. TensorBoard and MLflow need no switch: they write files, or send requests, in the calls of the script.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from samestep.base import env

_SWITCHES = {
    "WANDB_MODE": "disabled",
    "SWANLAB_MODE": "disabled",
    "COMET_AUTO_LOG_DISABLE": "1",
    "CLEARML_OFFLINE_MODE": "1",
}


@contextmanager
def disabled_trackers(rank: int) -> Iterator[None]:
    """Disable the trackers of this rank for the duration of a block, unless it is rank 0."""
    if rank == 0:
        yield
        return
    # The two packages of Neptune have different names for it, and refuse each other's.
    neptune = "disabled" if find_spec("neptune_scale") else "debug"
    with env.exported({**_SWITCHES, "NEPTUNE_MODE": neptune}):
        yield
