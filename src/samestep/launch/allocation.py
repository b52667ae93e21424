"""A shell that holds a Slurm allocation without being in it, as ``salloc`` gives on a login node.

Work does not belong there: the command starts itself anew as a step of the allocation, by the rule of
`plan`: the allocation's tasks are the workers, unless more workers are asked for.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.launch.job import Job
from samestep.world.detect import UNLAUNCHED, detect


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What Slurm has granted to a shell.

    Args:
        job: its number.
        nodes: how many nodes.
        tasks: how many tasks ``srun`` starts there.
        cpus_per_task: processors asked for each; None where not said.
        components: how many allocations it consists of (a heterogeneous job: ``salloc ... : ...``).
    """

    job: str
    nodes: int
    tasks: int
    cpus_per_task: int | None = None
    components: int = 1


def allocation(env: Environment) -> Allocation | None:
    """Return the allocation that this process holds from outside; None where it has none, or is in it."""
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
    """Return the command that runs `command`, this one, as the allocation's tasks.

    Raises:
        UsageError: the workers asked for cannot be made of them, it has several components, or there is
            no ``srun``.
    """
    if held.components > 1:
        raise UsageError(
            f"allocation {held.job} is heterogeneous, and a step runs on its first component unless told. "
            f"Say which are meant: srun --het-group=0-{held.components - 1} samestep ..., without -n."
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
    """Return what begins a step whose tasks have the processors of so many of the allocation's."""
    if shutil.which("srun") is None:
        raise UsageError(
            f"this shell holds Slurm allocation {held.job} but is not in it, and there is no srun here to "
            "start workers there."
        )
    # srun does not read what salloc was given for this.
    cpus = () if held.cpus_per_task is None else (f"--cpus-per-task={held.cpus_per_task * tasks_as_one}",)
    return ["srun", *flags, *cpus]
