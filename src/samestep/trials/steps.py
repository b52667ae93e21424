"""Runs trials as steps of a Slurm allocation, one after another, so that none disturbs another.

By default the workers are srun's tasks; where launchers are compared, one task of a node may start them.
"""

import sys
from functools import partial

from samestep.launch.room import Launched, Room
from samestep.trials.launchers import torchrun
from samestep.trials.load import Load
from samestep.trials.local import Local
from samestep.trials.trial import SAMESTEP, Trial

_PORT = 29400
"""torchrun's; each step has one of its own, which a step before it may not have left yet."""


class Steps(Local):
    """Runs trials in an allocation.

    Args:
        room: what it holds.
        largest: workers of the largest trial.
    """

    def __init__(self, room: Room, largest: int) -> None:
        super().__init__(partial(step, room=room, largest=largest))

    def others(self) -> Load | None:
        """Return nothing: the allocation's nodes are others than this host, or more."""
        return None


def step(trial: Trial, *, room: Room, largest: int) -> list[str]:
    """Return the command that starts the workers of `trial` as a step, and waits for them.

    Args:
        trial: to run.
        room: of the allocation.
        largest: workers of the largest trial.
    """
    launched: Launched = "tasks" if trial.launcher in ("", "srun") else "node"
    srun = room.step(trial.workers, nodes=trial.nodes, largest=largest, launched=launched)
    if launched == "tasks":
        return [*srun, *trial.as_task(sys.executable)]
    if trial.launcher == SAMESTEP:
        return [*srun, *trial.started(sys.executable)]
    meet = ["--standalone"] if trial.nodes == 1 else _meeting(trial, room)
    return [*srun, *torchrun(trial, *meet)]


def _meeting(trial: Trial, room: Room) -> list[str]:
    point = f"{room.first}:{_PORT + trial.number % 500}"
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint={point}", f"--rdzv-id={room.job}.{trial.number}"]
