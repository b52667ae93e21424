"""Finds the host of rank 0 in an MPI job on several hosts, if neither user nor launcher gives it.

Open MPI puts a list of the hosts it runs on into each rank's environment. MPICH's Hydra leaves an open
descriptor for requests of the ranks: lines of ``cmd=NAME KEY=VALUE ...``, the wire protocol of PMI-1. Neither
needs MPI itself.
"""

import os
import re
import select
import stat
from dataclasses import replace
from functools import cache
from socket import gethostname

from samestep.base.env import Environment, integer
from samestep.launchers.detect import Detected
from samestep.launchers.hostlist import MOST
from samestep.launchers.registry import MPICH, OPEN_MPI

_ANSWER_S = 120.0
"""Maximum seconds of an answer of Hydra's: it answers a barrier once all ranks have called it."""
_HOSTS = re.compile(r"([^,\[\]@]*)(?:\[([0-9]{1,2}):([0-9,-]+)\])?([^,\[\]@]*)(?:,|$|@)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def with_main_host(detected: Detected, env: Environment) -> Detected:
    """Return `detected`, completed by the host of rank 0 if MPI's launcher gives it; all ranks call this."""
    place = detected.place
    if detected.master_addr or detected.hosts or place.local_size == place.size:
        return detected
    if detected.launcher == OPEN_MPI.name:
        # Ranks on mpirun's own host do not get the list; those on rank 0's host do not need it.
        own = gethostname() if place.rank == place.local_rank else ""
        return replace(detected, hosts=open_mpi_first(env) or own)
    descriptor = integer(env, "PMI_FD")
    if detected.launcher != MPICH.name or descriptor is None:
        return detected
    try:
        host, job = _exchanged(descriptor, is_main=place.is_main)
    except (OSError, ValueError):  # closed, or another protocol: a later error asks the user for the address
        return detected
    return replace(detected, master_addr=host, job=job)


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
            found = _RANGE.fullmatch(part)
            if found is None or len(names) + int(found[2] or found[1]) - int(found[1]) > MOST:
                return None
            numbers = range(int(found[1]), int(found[2] or found[1]) + 1)
            names += [f"{prefix}{str(number).zfill(int(width))}{suffix}" for number in numbers]
    # The list begins with mpirun's own host, which counts only if ranks run there.
    beside = len(names) - (integer(env, "OMPI_MCA_orte_num_nodes") or 0)
    return names[beside] if beside in (0, 1) and beside < len(names) else None


@cache  # Hydra closes the connection after `finalize`
def _exchanged(descriptor: int, *, is_main: bool) -> tuple[str, str]:
    """Return the host of rank 0 and Hydra's name for the job."""
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
