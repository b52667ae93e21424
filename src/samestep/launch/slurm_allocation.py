"""Moves a command from a login node's shell into the Slurm allocation of that shell (``salloc``).

A login node is not for computing: the command restarts itself as a step of the allocation, by the rule of
`plan`: the allocation's tasks are the workers, unless more workers are requested.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.launch.job import Job
from samestep.launchers.detect import UNLAUNCHED, detect


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Slurm allocation of a shell.

    Args:
        job: its job ID.
        nodes: number of nodes.
        tasks: number of tasks that ``srun`` starts there.
        cpus_per_task: processors requested for each task; None if not given.
        components: number of its component allocations (heterogeneous job: ``salloc ... : ...``).
    """

    job: str
    nodes: int
    tasks: int
    cpus_per_task: int | None = None
    components: int = 1


def allocation(env: Environment) -> Allocation | None:
    """Return the allocation that this process holds from outside; None if it has none, or runs inside it."""
    if not env.get("SLURM_JOB_ID") or env.get("SLURMD_NODENAME") or detect(env).launcher != UNLAUNCHED:
        return None
    nodes = integer(env, "SLURM_JOB_NUM_NODES") or 1
    return Allocation(
        job=env["SLURM_JOB_ID"],
        nodes=nodes,
        tasks=integer(env, "SLURM_NTASKS") or nodes,
        cpus_per_task=integer(env, "SLURM_CPUS_PER_TASK"),
        components=integer(env, "SLURM_HET_SIZE") or 1,
    )


def step(job: Job, held: Allocation, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command`, which is this process's, as the allocation's tasks.

    Raises:
        UsageError: the tasks do not fit the requested workers, the allocation has several components, or
            there is no ``srun``.
    """
    if held.components > 1:
        raise UsageError(
            f"allocation {held.job} is heterogeneous, and a step runs on its first component by default. "
            f"Select components: srun --het-group=0-{held.components - 1} samestep ..., without -n."
        )
    asked = job.asked() if job.per_node is None else job.per_node * held.nodes
    if asked not in (None, held.tasks) and (held.tasks != held.nodes or asked % held.tasks):
        raise UsageError(
            f"{asked} workers were asked for, but allocation {held.job} has {held.tasks} task(s) on "
            f"{held.nodes} node(s). Leave -n out to make each task a worker, or allocate one task per node "
            "and ask for a multiple of the nodes."
        )
    return [*_srun(held, "--kill-on-bad-exit=1"), *command]


def one_task(held: Allocation, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command`, which starts its workers itself, once, on one node.

    Raises:
        UsageError: there is no ``srun``.
    """
    flags = ("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpu-bind=none")
    return [*_srun(held, *flags, tasks_as_one=max(1, held.tasks // held.nodes)), *command]


def _srun(held: Allocation, *flags: str, tasks_as_one: int = 1) -> list[str]:
    """Return the srun of a step; each task has the processors of `tasks_as_one` tasks of the allocation."""
    if shutil.which("srun") is None:
        raise UsageError(
            f"this shell holds Slurm allocation {held.job} but is not in it, and there is no srun here to "
            "start workers there."
        )
    # srun does not read salloc's value of this flag.
    cpus = () if held.cpus_per_task is None else (f"--cpus-per-task={held.cpus_per_task * tasks_as_one}",)
    return ["srun", *flags, *cpus]
