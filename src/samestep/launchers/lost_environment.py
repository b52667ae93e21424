"""Detects the place of a task, and refuses one that has lost its launcher or its launcher's environment.

Each of them would run as the only one and do all of the work: N silent duplicates that write the same
files. A job's script and shell, which are single processes, are not refused.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.polling import polls
from samestep.base.units import whole
from samestep.launchers.detect import UNLAUNCHED, Detected, detect, is_job_script
from samestep.launchers.mpi_hosts import with_main_host
from samestep.launchers.registry import ENVIRONMENT

_PODS_ADVICE = (
    "Start it by torchrun, which reads them (`torchrun --no-python samestep run train.py`, or "
    "`torchrun train.py`), give them as flags (samestep run --nnodes --node-rank --nproc-per-node "
    "--master-addr), or unset them for a single process."
)
_PODS_NAMES = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
_STARTERS = ("slurmstepd", "orted", "prted", "mpirun", "mpiexec", "orterun", "prterun", "hydra_pmi_proxy")
"""Programs whose children are ranks."""
_LINGER_S = 2.0
"""Seconds that a process stays after it has found others like it, so that they find it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Ancestor of this process."""

    name: str  # its name
    pid: int  # its process ID
    alike: int  # number of its children that run the same command as the one from which this process descends


Parents = Callable[[], Sequence[Parent]]


def detect_task(
    env: Environment, *, master: tuple[str | None, int | None] = (None, None), nodes: int = 1
) -> Detected:
    """Return the launcher and the place of this process; all tasks of a launcher call this.

    `master` and `nodes` are the address and port of the rendezvous, and the number of nodes, that the user
    gave.

    Raises:
        DetectionError: the launcher's variables contradict each other, or some or all are missing.
    """
    found = with_main_host(detect(env), env)
    if found.launcher == UNLAUNCHED:
        refuse_duplicates(env)
    if nodes == 1:
        refuse_pods(env, found)
    address, port = master
    return replace(found, master_addr=address or found.master_addr, master_port=port or found.master_port)


def refuse_duplicates(env: Environment, parents: Parents | None = None) -> None:
    """Refuse to run as one of several equal processes of a launcher whose variables have been lost.

    `parents` returns this process's ancestors, nearest first; tests replace it.

    Raises:
        DetectionError: this is such a process; the message has the launcher and the remedy.
    """
    if is_job_script(env):
        return
    for parent in (parents or _parents)():
        if parent.alike > 1 and parent.name.startswith(_STARTERS):
            raise DetectionError(
                f"{parent.name} (process {parent.pid}) started {parent.alike} processes like this one, but "
                "none of its variables is left here, so that each would repeat the same run. Let the "
                "variables through (a container: --env or no --cleanenv), or start one process."
            )


def refuse_pods(env: Environment, found: Detected) -> None:
    """Refuse to run as one of several pods that were set up for torchrun, without torchrun.

    Platforms set ``PET_`` variables, which stand for torchrun's flags, in each pod. samestep takes no
    configuration from them. Without torchrun, each pod would run as the only one, or as one worker in place
    of several.

    Raises:
        DetectionError: this is such a pod; the message has the variables and the remedy.
    """
    if found.launcher not in (UNLAUNCHED, ENVIRONMENT.name):
        return
    variables = ", ".join(f"{name}={env[name]}" for name in _PODS_NAMES if env.get(name))
    if found.place.size == 1 and (_most_nodes(env) > 1 or (integer(env, "PET_NODE_RANK") or 0) > 0):
        raise DetectionError(
            f"{variables}: this is one of several pods that were set up for torchrun, which did not start "
            f"this process, so that each would repeat the same run. {_PODS_ADVICE}"
        )
    per_pod = env.get("PET_NPROC_PER_NODE", "")
    if found.place.size > 1 and (whole(per_pod) or 1) > 1 and not env.get("LOCAL_RANK"):
        raise DetectionError(
            f"{variables}: RANK={env.get('RANK')} is the number of this pod, not of one of its {per_pod} "
            f"workers, which torchrun did not start. {_PODS_ADVICE}"
        )


def _most_nodes(env: Environment) -> int:
    """Return the maximum number of pods: ``PET_NNODES`` is a number, or minimum and maximum."""
    most = env.get("PET_NNODES", "").rpartition(":")[2]
    return whole(most) or 1


def is_alike(command_of: Callable[[], list[str]], own: list[str], *, patience_s: float = 0.5) -> bool:
    """Return whether another process runs this one's command, or is about to, for example after ``env``.

    `command_of` returns the other's command line, which is empty while it becomes another program: wait for
    it, up to `patience_s`.
    """
    command: list[str] = []
    for _ in polls(patience_s, least_s=0.01):
        if command := command_of():
            break
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
