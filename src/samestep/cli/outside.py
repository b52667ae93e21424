"""Where a command that runs workers holds an allocation from outside: it goes in, by ``srun``."""

import shlex
import sys

from samestep.base import env
from samestep.cli.running import tell
from samestep.launch.allocation import Allocation, allocation, one_task, step
from samestep.launch.job import Job, Program
from samestep.launch.programs import become


def went_in(job: Job, *, dry_run: bool = False) -> bool:
    """Have this command run as the tasks of the Slurm allocation that this shell holds, if it holds one.

    Returns only where it holds none, or where nothing is to be done but said; whether that is so is returned.

    Raises:
        UsageError: the workers asked for cannot be made of the allocation's tasks.
    """
    held = allocation(env.snapshot()) if job.nodes.count == 1 else None
    if held is None:
        return False
    _go_in(held, step(job, held, _this_command()), dry_run=dry_run)
    return True


def went_in_once() -> None:
    """Have this command run as one task in the Slurm allocation that this shell holds, if it holds one.

    Raises:
        UsageError: there is no ``srun``.
    """
    held = allocation(env.snapshot())
    if held is not None:
        _go_in(held, one_task(held, _this_command()))


def _go_in(held: Allocation, command: list[str], *, dry_run: bool = False) -> None:
    """Become the command that starts a step of the allocation; return only where nothing is to be done."""
    if dry_run:
        print(f"step of allocation {held.job}: {shlex.join(command)}")
        return
    tell(
        f"this shell holds Slurm allocation {held.job} ({held.tasks} task(s) on {held.nodes} node(s)) and is "
        "not in it: starting there, with srun"
    )
    ending = become(Program(target=command[0], kind="executable", args=tuple(command[1:]))).ending
    raise SystemExit(ending.exit_code)


def _this_command() -> list[str]:
    return [sys.executable, "-m", "samestep", *sys.argv[1:]]
