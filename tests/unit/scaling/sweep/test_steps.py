"""Runs in an allocation are started by srun."""

import sys
from pathlib import Path

import pytest

from samestep.scaling.sweep.local_runs import SlurmCapacity, step
from samestep.scaling.sweep.trial import Trial

ROOM = SlurmCapacity(job="12", nodes=2, tasks=2, processors=4, first="node0")


def words(**changes):
    plain = {"number": 7, "workers": 4, "nodes": 2, "modes": ("strong",), "command": ("run", "train.py")}
    trial = Trial(**plain | {"folder": Path("/study/1")} | changes)
    command = step(trial, room=ROOM, largest=4)
    at = command.index(sys.executable)
    return command[:at], command[at + 1 :]


@pytest.mark.parametrize("launcher", ["", "srun"])
def test_the_workers_are_tasks(launcher):
    srun, python = words(launcher=launcher)

    assert "--ntasks=4" in srun
    assert python == ["-m", "samestep", "run", "train.py"]


def test_samestep_starts_the_workers_if_launchers_are_compared():
    srun, python = words(launcher="samestep")

    assert "--ntasks=2" in srun
    assert python == ["-m", "samestep", "run", "-n", "4", "train.py"]


def test_the_rendezvous_of_torchrun_is_on_the_first_node():
    srun, python = words(launcher="torchrun")

    assert {"--ntasks=2", "--relative=0"} <= set(srun)
    assert python == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"),
        *("--log-dir=/study/1/scratch/torchrun", "--rdzv-backend=c10d"),
        *("--rdzv-endpoint=node0:29407", "--rdzv-id=12.7", "-m", "samestep", "run", "train.py"),
    ]
    assert "--standalone" in words(launcher="torchrun", workers=2, nodes=1)[1]
