"""Names once, after a run on several workers of one host, the command that compares them with one process.

Without samestep, one process computes on all cores, and can be as fast as several workers that share them.
"""

import shlex
import sys
from pathlib import Path

from samestep.base.folders import user_cache
from samestep.base.machine.accelerators import can_have_accelerators
from samestep.launch.plan import Spawn
from samestep.run.decision import Decision

NAME = "scale-hint"
"""The name of the file in the user's cache folder that records that the line was printed."""


def scale_hint(decision: Decision) -> str:
    """Return the line if it has not been printed before, and record it; otherwise return an empty text.

    There is none after the first time, where that cannot be recorded, where stderr is not a terminal, for
    several nodes, and on a machine that can have GPUs unless the program was told to use the CPU.
    """
    if not (_applies(decision) and sys.stderr.isatty() and _is_first(user_cache() / NAME)):
        return ""
    program = decision.job.program
    module = "-m " if program.kind == "module" else ""
    command = f"samestep scale -n 1,{decision.size} {module}-- {shlex.join([program.target, *program.args])}"
    return (
        f"{command} measures whether {decision.size} workers are faster than one process with all of their "
        "cores. This line is printed once."
    )


def _applies(decision: Decision) -> bool:
    plan, program = decision.plan, decision.job.program
    if not isinstance(plan, Spawn) or plan.nodes.count > 1 or decision.size == 1 or not decision.is_main:
        return False
    is_measurable = program.kind != "executable" and program.target != "samestep"
    if not is_measurable or decision.starts_workers_alone:
        return False
    return decision.options.device == "cpu" or not can_have_accelerators()


def _is_first(record: Path) -> bool:
    """Create the file `record`; return whether it is new."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch(exist_ok=False)
    except OSError:  # it exists, or cannot be written
        return False
    return True
