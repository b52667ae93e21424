"""Reruns a command as the tasks of the Slurm allocation that its shell holds, with ``srun``."""

import shlex
import sys

from samestep.base import env
from samestep.base.console import log
from samestep.launch.job import Job, Program
from samestep.launch.local.programs import become
from samestep.launch.slurm_allocation import Allocation, allocation, one_task, step


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
    return [sys.executable, "-m", "samestep", *sys.argv[1:]]
