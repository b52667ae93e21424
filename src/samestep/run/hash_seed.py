"""Gives a serial script's ranks one hash seed, where not all of them are forked from this process.

Python chooses a hash seed for each process, and it decides the order of sets. It can be set only before the
interpreter starts, so this command replaces itself by the same command with ``PYTHONHASHSEED`` set.
"""

import os
import sys

from samestep.base import env
from samestep.launch.job import Job
from samestep.launchers.detect import detect
from samestep.run.decision import recognize_script


def fix_hash_seed(job: Job, mode: str) -> None:
    """Start this command again with a fixed hash seed, if the ranks need one and the user has set none.

    Call it before the rendezvous and before torch is imported, so that nothing slow is done twice.

    Args:
        job: the job to run.
        mode: the value of ``--mode``; see `samestep.run.decision.decide`.
    """
    environment = env.snapshot()
    if environment.get(env.HASH_SEED) or sys.flags.ignore_environment or not _is_restartable():
        return
    if not _has_other_starters(job) or not _is_serial(job, mode):
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, sys.orig_argv, {**environment, **env.FIXED_HASH_SEED})  # noqa: S606 - no shell


def _is_restartable() -> bool:
    """Return whether the interpreter's arguments would start this command again."""
    arguments = sys.argv[1:]
    is_same = sys.orig_argv[len(sys.orig_argv) - len(arguments) :] == arguments
    return is_same and bool(arguments) and bool(sys.executable) and "torch" not in sys.modules


def _has_other_starters(job: Job) -> bool:
    """Return whether other processes than this one start ranks of the job."""
    return job.nodes.count > 1 or detect(env.snapshot()).place.size > 1


def _is_serial(job: Job, mode: str) -> bool:
    if job.program.kind == "executable" or mode == "native":
        return False
    return mode == "autopilot" or recognize_script(job.program).kind == "serial"
