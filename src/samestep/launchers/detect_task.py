"""Detects the place of a task by more than its variables, and refuses a task that has lost its launcher's.

If neither user nor launcher gives the host of rank 0 in an MPI job on several hosts, MPI's launcher is asked.
Open MPI puts a list of the hosts it runs on into each rank's environment. MPICH's Hydra and Flux leave an
open descriptor for requests of the ranks: lines of ``cmd=NAME KEY=VALUE ...``, the wire protocol of PMI-1.
None of them needs MPI itself.

A task without its launcher, or its launcher's environment, would run as the only one and do all of the work:
N silent duplicates that write the same files. A job's script and shell, which are single processes, are not
refused.
"""

import os
import re
import select
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from socket import gethostname

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.polling import polls
from samestep.base.units import whole
from samestep.launchers.detect import UNLAUNCHED, Detected, detect, is_job_script
from samestep.launchers.hostlist import MOST
from samestep.launchers.registry import BY_NAME, ENVIRONMENT, OPEN_MPI

_PODS_ADVICE = (
    "Start it by torchrun, which reads them (`torchrun --no-python samestep run train.py`, or "
    "`torchrun train.py`), give them as flags (samestep run --nnodes --node-rank --nproc-per-node "
    "--master-addr), or unset them for a single process."
)
_PODS_NAMES = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
_STARTERS = (
    "slurmstepd",
    "orted",
    "prted",
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "hydra_pmi_proxy",
    "flux-shell",
)
"""Programs whose children are ranks."""
_LINGER_S = 2.0
"""Seconds that a process stays after it has found others like it, so that they find it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Ancestor of this process."""

    name: str  # its name
    pid: int  # its process ID
    # number of its children that run the same command as the one from which this process descends
    duplicates: int


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
    detected = with_main_host(detect(env), env)
    if detected.launcher == UNLAUNCHED:
        refuse_duplicates(env)
    if nodes == 1:
        refuse_pods(env, detected)
    address, port = master
    return replace(
        detected, master_addr=address or detected.master_addr, master_port=port or detected.master_port
    )


def refuse_duplicates(env: Environment, parents: Parents | None = None) -> None:
    """Refuse to run as one of several equal processes of a launcher whose variables have been lost.

    `parents` returns this process's ancestors, nearest first; tests replace it.

    Raises:
        DetectionError: this is such a process; the message has the launcher and the remedy.
    """
    if is_job_script(env):
        return
    for parent in (parents or _parents)():
        if parent.duplicates > 1 and parent.name.startswith(_STARTERS):
            raise DetectionError(
                f"{parent.name} (process {parent.pid}) started {parent.duplicates} processes like this one, "
                "but none of its variables is left here, so that each would repeat the same run. Let the "
                "variables through (a container: --env or no --cleanenv), or start one process."
            )


def refuse_pods(env: Environment, detected: Detected) -> None:
    """Refuse to run as one of several pods that were set up for torchrun, without torchrun.

    Platforms set ``PET_`` variables, which stand for torchrun's flags, in each pod. samestep takes no
    configuration from them. Without torchrun, each pod would run as the only one, or as one worker in place
    of several.

    Raises:
        DetectionError: this is such a pod; the message has the variables and the remedy.
    """
    if detected.launcher not in (UNLAUNCHED, ENVIRONMENT.name):
        return
    variables = ", ".join(f"{name}={env[name]}" for name in _PODS_NAMES if env.get(name))
    if detected.place.size == 1 and (_most_nodes(env) > 1 or (integer(env, "PET_NODE_RANK") or 0) > 0):
        raise DetectionError(
            f"{variables}: this is one of several pods that were set up for torchrun, which did not start "
            f"this process, so that each would repeat the same run. {_PODS_ADVICE}"
        )
    per_pod = env.get("PET_NPROC_PER_NODE", "")
    if detected.place.size > 1 and (whole(per_pod) or 1) > 1 and not env.get("LOCAL_RANK"):
        raise DetectionError(
            f"{variables}: RANK={env.get('RANK')} is the number of this pod, not of one of its {per_pod} "
            f"workers, which torchrun did not start. {_PODS_ADVICE}"
        )


def _most_nodes(env: Environment) -> int:
    """Return the maximum number of pods: ``PET_NNODES`` is a number, or minimum and maximum."""
    most = env.get("PET_NNODES", "").rpartition(":")[2]
    return whole(most) or 1


def runs_command(
    command_of: Callable[[], list[str]], expected: list[str], *, patience_s: float = 0.5
) -> bool:
    """Return whether a process runs the `expected` command, or is about to, for example after ``env``.

    `command_of` returns the command line of the process, which is empty while it becomes another program:
    wait for it, up to `patience_s`.
    """
    command: list[str] = []
    for _ in polls(patience_s, least_s=0.01):
        if command := command_of():
            break
    return command[-len(expected) :] == expected


def _parents() -> list[Parent]:
    import psutil

    parents: list[Parent] = []
    try:
        child = psutil.Process()
        for parent in child.parents():
            if parent.name().startswith(_STARTERS):
                duplicates = sum(
                    runs_command(sibling.cmdline, child.cmdline()) for sibling in parent.children()
                )
                parents.append(Parent(name=parent.name(), pid=parent.pid, duplicates=duplicates))
            child = parent
    except psutil.Error:  # another user's process, or gone
        pass
    if any(parent.duplicates > 1 for parent in parents):
        time.sleep(_LINGER_S)
    return parents


_ANSWER_S = 120.0
"""Maximum seconds of an answer by PMI-1: a barrier is answered once all ranks have called it."""
_HOSTS = re.compile(r"([^,\[\]@]*)(?:\[([0-9]{1,2}):([0-9,-]+)\])?([^,\[\]@]*)(?:,|$|@)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def with_main_host(detected: Detected, env: Environment) -> Detected:
    """Return `detected`, completed by the host of rank 0 if MPI's launcher gives it; all ranks call this."""
    place = detected.place
    if detected.master_addr or place.local_size == place.size:
        return detected
    if detected.launcher == OPEN_MPI.name:
        # Its ranks may run on a part of Slurm's hosts. Those on mpirun's own host do not get its list; those
        # on rank 0's host do not need it.
        host = gethostname() if place.rank == place.local_rank else ""
        return replace(detected, hosts=open_mpi_first(env) or detected.hosts or host)
    if detected.hosts:
        return detected
    launcher, descriptor = BY_NAME.get(detected.launcher), integer(env, "PMI_FD")
    if launcher is None or not launcher.serves_pmi1 or descriptor is None:
        return detected
    try:
        host, job = _exchanged(descriptor, is_main=place.is_main)
    except (OSError, ValueError):  # closed, or another protocol: a later error asks the user for the address
        return detected
    return replace(detected, master_addr=host, job=detected.job or job)


def open_mpi_first(env: Environment) -> str | None:
    """Return the first host that ranks run on, from the list that Open MPI 4 passes to its daemons, or None.

    >>> open_mpi_first({"OMPI_MCA_orte_node_regex": "login,n[2:8-9]@0(3)", "OMPI_MCA_orte_num_nodes": "2"})
    'n08'
    """
    names: list[str] = []
    for prefix, width, ranges, suffix in _HOSTS.findall(
        env.get("OMPI_MCA_orte_node_regex", "").split("@")[0]
    ):
        if not ranges:
            names += [prefix + suffix] if prefix + suffix else []
            continue
        for part in ranges.split(","):
            match = _RANGE.fullmatch(part)
            if match is None or len(names) + int(match[2] or match[1]) - int(match[1]) > MOST:
                return None
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
            names += [f"{prefix}{str(number).zfill(int(width))}{suffix}" for number in numbers]
    # The list begins with mpirun's own host, which counts only if ranks run there.
    beside = len(names) - (integer(env, "OMPI_MCA_orte_num_nodes") or 0)
    return names[beside] if beside in (0, 1) and beside < len(names) else None


@cache  # the launcher closes the connection after `finalize`
def _exchanged(descriptor: int, *, is_main: bool) -> tuple[str, str]:
    """Return the host of rank 0 and the launcher's name for the job."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(f"{descriptor} is no socket")
    _ask(descriptor, "init pmi_version=1 pmi_subversion=1")
    job = _ask(descriptor, "get_my_kvsname")["kvsname"]
    if is_main:
        _ask(descriptor, f"put kvsname={job} key=samestep value={gethostname()}")
    _ask(descriptor, "barrier_in")
    host = _ask(descriptor, f"get kvsname={job} key=samestep")["value"]
    # A rank that ended without this would count as dead, and all others be killed.
    _ask(descriptor, "finalize")
    return host, job


def _ask(descriptor: int, command: str) -> dict[str, str]:
    """Send a command; return the fields of the answer.

    Raises:
        OSError: no answer arrived.
        ValueError: the answer is not PMI-1's, or a refusal.
    """
    os.write(descriptor, f"cmd={command}\n".encode())
    answer = b""
    while not answer.endswith(b"\n"):
        if not select.select([descriptor], [], [], _ANSWER_S)[0]:
            raise TimeoutError(f"no answer to {command} within {_ANSWER_S:g} s")
        more = os.read(descriptor, 4096)
        if not more:
            raise ConnectionError("the other end is gone")
        answer += more
    fields = dict(word.split("=", 1) for word in answer.decode().split() if "=" in word)
    if "cmd" not in fields or fields.get("rc", "0") != "0":
        raise ValueError(f"{command} was answered by {answer!r}")
    return {"kvsname": "", "value": "", **fields}
