"""Where a command that runs workers holds an allocation from outside: it goes in, by ``srun``."""

import shlex
import sys

from samestep.base import env
from samestep.cli.running import tell
from samestep.launch.allocation import allocation, step
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
    command = step(job, held, [sys.executable, "-m", "samestep", *sys.argv[1:]])
    if dry_run:
        print(f"step of allocation {held.job}: {shlex.join(command)}")
        return True
    tell(
        f"this shell holds Slurm allocation {held.job} ({held.tasks} task(s) on {held.nodes} node(s)) and is "
        "not in it: starting there, with srun"
    )
    ending = become(Program(target=command[0], kind="executable", args=tuple(command[1:]))).ending
    raise SystemExit(ending.exit_code)
