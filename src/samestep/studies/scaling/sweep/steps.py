"""Executes runs as steps of a Slurm allocation, one after another, so that they do not disturb each other.

By default the workers are tasks of srun. If launchers are compared, one task on each node starts them.
"""

import sys
from functools import partial

from samestep.launchers.slurm_capacity import Launched, Room
from samestep.studies.scaling.sweep.host_load import Load
from samestep.studies.scaling.sweep.launchers import torchrun
from samestep.studies.scaling.sweep.local import Local
from samestep.studies.scaling.sweep.trial import SAMESTEP, Trial

_PORT = 29400
"""The first rendezvous port of torchrun; steps have different ports, since one can be in use for a while."""


class Steps(Local):
    """A runner in a Slurm allocation.

    Args:
        room: the capacity of the allocation.
        largest: workers of the largest run.
    """

    def __init__(self, room: Room, largest: int) -> None:
        super().__init__(partial(step, room=room, largest=largest))

    def background_load(self) -> Load | None:
        """Return None, since the nodes of the allocation are not only this host."""
        return None


def step(trial: Trial, *, room: Room, largest: int) -> list[str]:
    """Return the command that starts the workers of `trial` as a step, and waits for them.

    Args:
        trial: the run.
        room: the capacity of the allocation.
        largest: workers of the largest run.
    """
    launched: Launched = "tasks" if trial.launcher in ("", "srun") else "node"
    srun = room.step(trial.workers, nodes=trial.nodes, largest=largest, launched=launched)
    if launched == "tasks":
        return [*srun, *trial.task_command(sys.executable)]
    if trial.launcher == SAMESTEP:
        return [*srun, *trial.launch_command(sys.executable)]
    rendezvous = ["--standalone"] if trial.nodes == 1 else _rendezvous(trial, room)
    return [*srun, *torchrun(trial, *rendezvous)]


def _rendezvous(trial: Trial, room: Room) -> list[str]:
    endpoint = f"{room.first}:{_PORT + trial.number % 500}"
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={room.job}.{trial.number}"]
