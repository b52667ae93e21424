"""Ends a native script whose ranks train without a process group of the job's size: they are silent copies.

Such a script takes its rank from a variable that is not set here, creates one group on each node, or none at
all. Each group then trains alone, and all write the same files.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from samestep.base import env
from samestep.base.console import write_stderr
from samestep.base.errors import UsageError
from samestep.launch.local.hosting import Ending, exit_process
from samestep.launch.local.programs import Around, has_met
from samestep.launch.source.launcher_variables import VariableRead
from samestep.launchers.detect import detect

CHECKED_STEP = 2
"""The optimizer step after which the group is checked; a script may create it for its first step."""


def checked_group(run: Callable[[], Ending], *, around: Around, reads: Sequence[VariableRead]) -> Ending:
    """Run a worker's program in `around`, and check its process group after its first steps.

    `reads` are lines of the script that read variables of other launchers.

    Raises:
        UsageError: the ranks are not in one group; raised in the script.
    """
    steps, fault = 0, ""
    size = detect(env.snapshot()).place.size  # of this round: nodes may come and go

    def after_step(*_: Any) -> None:
        nonlocal steps, fault
        if torch.compiler.is_compiling():
            return
        steps = min(steps + 1, CHECKED_STEP + 1)
        if fault:  # the script has caught the error
            write_stderr(f"samestep: error: {fault}\n")
            exit_process(UsageError.exit_code)
        if steps == CHECKED_STEP and (why := _fault(size)):
            fault = f"{why}, so the ranks train apart. {_remedy(reads)}"
            raise UsageError(fault)

    handle = register_optimizer_step_post_hook(after_step)
    try:
        return _explained(around(run), reads)
    finally:
        handle.remove()


def _explained(ending: Ending, reads: Sequence[VariableRead]) -> Ending:
    """Return the end of a program; in one line if a variable of another launcher was missing."""
    missing = [read for read in reads if ending.error == "KeyError" and ending.message == repr(read.name)]
    if not missing:
        return ending
    text = (
        f"{missing[0]}, which samestep run does not set. Read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
        "MASTER_PORT instead, or start it with that launcher."
    )
    return Ending(
        exit_code=UsageError.exit_code,
        error=UsageError.__name__,
        message=text,
        traceback=f"samestep: error: {text}\n",
        line=ending.line,
    )


def _fault(size: int) -> str:
    """Return what is wrong with the process group of this rank; empty if it is right."""
    group = dist.group.WORLD
    if group is not None and group.size() != size:
        return f"the script's process group has {group.size()} of {size} ranks"
    if group is None and not has_met(size):
        return f"{CHECKED_STEP} steps were taken, and the {size} ranks have no process group"
    return ""


def _remedy(reads: Sequence[VariableRead]) -> str:
    if reads:
        return f"{reads[0]}: read RANK, WORLD_SIZE and LOCAL_RANK instead, or start it with that launcher."
    return (
        "Call `samestep.join` or init_process_group with the launcher's RANK and WORLD_SIZE; give --mode "
        "native if independent copies are intended."
    )
