"""Derives the rendezvous of a job's ranks: the address and port of rank 0, without communication.

============================  =======================  ===========================================
known                         address                  port
============================  =======================  ===========================================
MASTER_ADDR, MASTER_PORT      as given                 as given (each half counts on its own)
a Slurm step                  first node of the step   from job and step id
all ranks on one host         loopback                 from the job's name, or the common launcher
several hosts, MPI            an error                 from the job's name, or an error
============================  =======================  ===========================================

At a derived port, rank 0 is asked for the real one first: see `samestep.ranks.rendezvous.free_port`.
"""

import re
import socket
import subprocess
import zlib

from samestep.base.errors import DetectionError, PeerLost
from samestep.base.polling import with_timeout
from samestep.base.process_identity import Ancestors, ancestors
from samestep.launchers import hostlist
from samestep.launchers.compute_threads import launcher_processes
from samestep.launchers.detect import Detected
from samestep.launchers.registry import BY_NAME, ENVIRONMENT

# Above the well-known services, below the ports that Linux (32768), Kubernetes (30000) and PyTorch's own
# default (29500) use.
PORTS = range(15000, 29000)
_TRIES = 8
_STRIDE = 1009  # prime: jobs whose first ports are adjacent have other ports far apart


def choose(
    detected: Detected, *, master: tuple[str, int] | None = None, ancestors: Ancestors = ancestors
) -> tuple[str, int]:
    """Return the address and port of the rendezvous; the same on every rank.

    `master`, from the caller, takes precedence. Tests replace `ancestors`.

    Raises:
        DetectionError: the address or the port was not given and cannot be derived.
    """
    if master is not None:
        return master
    address = detected.master_addr or _address(detected)
    port = detected.master_port or ports_of(name_of(detected, ancestors))[0]
    return address, port


def ports_of(name: str) -> list[int]:
    """Return the ports at which ranks contact rank 0 of the job of this name, in order."""
    first = zlib.crc32(name.encode())
    return [PORTS[(first + i * _STRIDE) % len(PORTS)] for i in range(_TRIES)]


def name_of(detected: Detected, ancestors: Ancestors = ancestors) -> str:
    """Return the name of the job, the same on every rank.

    Raises:
        DetectionError: there is none.
    """
    name = detected.job or _name_of_parent(detected, ancestors)
    if name:
        return f"{detected.launcher} {name}"
    raise DetectionError(
        f"{detected.place.describe()} was started by {detected.launcher}, which gives the job no name to "
        f"derive a port from. Set MASTER_PORT to the same free port on every rank: {_hint(detected)}"
    )


def resolve(address: str, *, timeout_s: float = 10.0) -> str:
    """Return the IP address of a host; wait for the name server at most `timeout_s`.

    A name that does not resolve may be that of a Slurm node with another address.

    Raises:
        DetectionError: there is no such host, or the name server did not answer in time.
    """

    def ask() -> str:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])

    try:  # the resolver cannot be interrupted; its thread is abandoned if it does not answer
        return with_timeout(timeout_s, ask, name="samestep-resolve")
    except TimeoutError as error:
        reason = str(error)
    except (OSError, UnicodeError) as error:
        reason = str(error)
        if (other := address_of(address)) is not None:
            return resolve(other, timeout_s=timeout_s)
    raise DetectionError(
        f"{address}, the host of rank 0, cannot be resolved on {socket.gethostname()} ({reason}). Set "
        "MASTER_ADDR to a name or an IP address that every node knows."
    )


def no_answer(where: str, timeout_s: float, error: Exception | None = None, *, more: str = "") -> PeerLost:
    """Return the error of a rank to which rank 0 does not answer; `where` is such as ``at host:port``."""
    reason = "" if error is None else f" ({error})"
    return PeerLost(
        f"rank 0 did not answer {where} within {timeout_s:g} s{reason}. Is it on that host, did it fail "
        "before it joined, or does a firewall close the port? Set MASTER_ADDR and MASTER_PORT to its "
        f"address.{more}"
    )


def _address(detected: Detected) -> str:
    if detected.place.local_size == detected.place.size:
        return "127.0.0.1"
    if detected.hosts:
        return hostlist.hosts(detected.hosts)[0]
    raise DetectionError(
        f"{detected.place.describe()} was started by {detected.launcher}, which does not give the host of "
        f"rank 0. Give it: {_hint(detected)}"
    )


def _name_of_parent(detected: Detected, ancestors: Ancestors) -> str:
    """Return a name of the job from the process that all of its ranks descend from, on one host.

    That is the nearest ancestor that is not a rank: a shell between the two has the rank's variables.
    """
    launcher = BY_NAME.get(detected.launcher)
    if launcher is None or not launcher.parent_is_job or detected.place.local_size < detected.place.size:
        return ""
    return next((name for name, _ in launcher_processes(launcher.name, ancestors)), "")


def _hint(detected: Detected) -> str:
    return BY_NAME.get(detected.launcher, ENVIRONMENT).address_hint


_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
_TIMEOUT_S = 10.0


def address_of(node: str) -> str | None:
    """Return the address at which Slurm reaches a node; None if it has no other one than the node's name."""
    try:
        answer = subprocess.run(
            ["scontrol", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _ADDRESS.search(answer.stdout)
    return found[1] if found and found[1] != node else None
