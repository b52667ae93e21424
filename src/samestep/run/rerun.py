"""Runs a command again, as the tasks of a Slurm allocation.

A login node is not for computing: in a shell that holds an allocation (``salloc``), the command restarts
itself as a step of it, by the rule of `samestep.launch.plan`.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.base import env
from samestep.base.console import log
from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.launch.job import Job, Program
from samestep.launch.local.child import become, interpreter
from samestep.launchers.detect import UNLAUNCHED, detect


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Slurm allocation of a shell."""

    job: str  # its job ID
    nodes: int  # number of nodes
    tasks: int  # number of tasks that ``srun`` starts there
    cpus_per_task: int | None = None  # processors requested for each task; None if not given
    components: int = 1  # number of its component allocations (heterogeneous job: ``salloc ... : ...``)


def allocation(variables: Environment) -> Allocation | None:
    """Return the allocation that this process holds from outside; None if it has none, or runs inside it."""
    if (
        not variables.get("SLURM_JOB_ID")
        or variables.get("SLURMD_NODENAME")
        or detect(variables).launcher != UNLAUNCHED
    ):
        return None
    nodes = env.integer(variables, "SLURM_JOB_NUM_NODES") or 1
    return Allocation(
        job=variables["SLURM_JOB_ID"],
        nodes=nodes,
        tasks=env.integer(variables, "SLURM_NTASKS") or nodes,
        cpus_per_task=env.integer(variables, "SLURM_CPUS_PER_TASK"),
        components=env.integer(variables, "SLURM_HET_SIZE") or 1,
    )


def rerun_in_allocation(job: Job, *, dry_run: bool = False) -> bool:
    """Replace this command by its rerun as the tasks of the allocation, if this shell holds one.

    Returns only where it holds none (False), or where the rerun was only printed (True).

    Raises:
        UsageError: the number of workers does not fit the allocation's tasks.
    """
    held = allocation(env.snapshot()) if job.nodes.count == 1 else None
    if held is None:
        return False
    _rerun(held, step(job, held, _this_command()), dry_run=dry_run)
    return True


def rerun_once_in_allocation() -> None:
    """Replace this command by its rerun as a single task of the allocation, if this shell holds one.

    Raises:
        UsageError: there is no ``srun``.
    """
    held = allocation(env.snapshot())
    if held is not None:
        _rerun(held, one_task(held, _this_command()))


def _rerun(held: Allocation, command: list[str], *, dry_run: bool = False) -> None:
    """Replace this process by `command`; return only if the command was just printed."""
    if dry_run:
        print(f"step of allocation {held.job}: {shlex.join(command)}")
        return
    log(
        f"this shell holds Slurm allocation {held.job} ({held.tasks} task(s) on {held.nodes} node(s)) but is "
        "not one of its tasks; rerunning this command there with srun"
    )
    ending = become(Program(target=command[0], kind="executable", args=tuple(command[1:]))).ending
    raise SystemExit(ending.exit_code)


def _this_command() -> list[str]:
    return [*interpreter(), "-m", "samestep", *sys.argv[1:]]


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
