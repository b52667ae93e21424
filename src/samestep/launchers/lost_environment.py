"""Refuses processes that have lost their launcher's environment: its variables are missing, or unknown.

Each of them would run as the only one and do all of the work: N silent duplicates that write the same
files. A job's script and shell, which are single processes, are not refused.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.launchers.read_variables import claim_of
from samestep.launchers.registry import LAUNCHERS, SLURM, UNKNOWN, Launcher, is_task_step

_STARTERS = ("slurmstepd", "orted", "prted", "mpirun", "mpiexec", "orterun", "prterun", "hydra_pmi_proxy")
"""Programs whose children are ranks."""
_OF_A_STEP = ("SLURM_STEP_", "SLURM_SRUN_COMM_", "SLURM_LAUNCH_NODE_")
"""Prefixes of the variables that srun sets for its tasks only."""
_LOOK_S = 0.01
_LINGER_S = 2.0
"""Seconds that a process stays after it has found others like it, so that they find it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Ancestor of this process.

    Args:
        name: its name.
        pid: its process ID.
        alike: number of its children that run the same command as the one from which this process descends.
    """

    name: str
    pid: int
    alike: int


Parents = Callable[[], Sequence[Parent]]


def refuse_half_set(env: Environment) -> None:
    """Refuse variables which show that this is one process of several, but not its rank.

    Args:
        env: variables of this process, in which no launcher was found.

    Raises:
        DetectionError: there are such variables; the message has them and the remedy.
    """
    for launcher in reversed(LAUNCHERS):  # the plainer row of two that share variables
        values = claim_of(launcher, env).values
        several = values.get("size", 1) > 1 or values.get("rank", 0) > 0
        if several and not (launcher is SLURM and _is_job_script(env)):
            _refuse_half(launcher, env)
    if env.get("SLURM_PROCID") and not env.get("SLURM_STEP_ID") and not _is_batch_script(env):
        _refuse_half(SLURM, env)  # task 0 of several would go on alone, the others refused
    for rank, size in UNKNOWN:
        if env.get(rank) and (not size or (integer(env, size) or 1) > 1):
            variables = ", ".join(f"{name}={env[name]}" for name in (size, rank) if name)
            raise DetectionError(
                f"{variables}: a launcher that samestep does not support started this process, as one of "
                "several, and each would repeat the same run. Export RANK, WORLD_SIZE, LOCAL_RANK, "
                "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its variables, or unset these for a "
                "single process."
            )


def refuse_copies(env: Environment, parents: Parents | None = None) -> None:
    """Refuse to run as one of several equal processes of a launcher whose variables have been lost.

    Args:
        env: variables of this process, in which no launcher was found.
        parents: returns this process's ancestors, nearest first; tests replace it.

    Raises:
        DetectionError: this is such a process; the message has the launcher and the remedy.
    """
    if _is_job_script(env):
        return
    for parent in (parents or _parents)():
        if parent.alike > 1 and parent.name.startswith(_STARTERS):
            raise DetectionError(
                f"{parent.name} (process {parent.pid}) started {parent.alike} processes like this one, but "
                "none of its variables is left here, so that each would repeat the same run. Let the "
                "variables through (a container: --env or no --cleanenv), or start one process."
            )


def _is_job_script(env: Environment) -> bool:
    """Return whether this is the script of a Slurm job or a shell in it, which is one process."""
    step = env.get("SLURM_STEP_ID", "")
    return bool(step) and not is_task_step(step)


def _is_batch_script(env: Environment) -> bool:
    """Return whether this is a job's batch script: Slurm gives it a task ID, its node and job, but no step.

    A task whose container lets some variables through only lacks others too, or has more of its step's.
    """
    if integer(env, "SLURM_NTASKS") == 1:
        return True
    if not env.get("SLURM_JOB_ID") or not env.get("SLURMD_NODENAME"):
        return False
    return not any(name.startswith(_OF_A_STEP) for name in env)


def _refuse_half(launcher: Launcher, env: Environment) -> None:
    claim = claim_of(launcher, env)
    lacking = next(name for group in launcher.proof for name in group if not env.get(name))
    raise DetectionError(
        f"{lacking} is not set, but {claim.shown()} is (launcher: {launcher.name}): this is one of "
        "several processes, but its rank is unknown. Let all of the launcher's variables through, or unset "
        "these for a single process."
    )


def is_alike(command_of: Callable[[], list[str]], own: list[str], *, patience_s: float = 0.5) -> bool:
    """Return whether another process runs this one's command, or is about to, for example after ``env``.

    Args:
        command_of: returns the other's command line; empty while it becomes another program.
        own: command line of this process.
        patience_s: maximum seconds to wait for a command line.
    """
    end = time.monotonic() + patience_s
    while not (command := command_of()) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return command[-len(own) :] == own


def _parents() -> list[Parent]:
    import psutil

    found: list[Parent] = []
    try:
        child = psutil.Process()
        for parent in child.parents():
            if parent.name().startswith(_STARTERS):
                alike = sum(is_alike(other.cmdline, child.cmdline()) for other in parent.children())
                found.append(Parent(name=parent.name(), pid=parent.pid, alike=alike))
            child = parent
    except psutil.Error:  # another user's process, or gone
        pass
    if any(parent.alike > 1 for parent in found):
        time.sleep(_LINGER_S)
    return found
