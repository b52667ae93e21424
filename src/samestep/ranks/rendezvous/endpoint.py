"""Determines the rendezvous of a job's ranks: the address and port of rank 0.

============================  =======================  ===========================================
known                         address                  port
============================  =======================  ===========================================
MASTER_ADDR, MASTER_PORT      as given                 as given (each half counts on its own)
a Slurm step                  first node of the step   from job and step id
all ranks on one host         loopback                 from the job's name, or the common launcher
several hosts, MPI            an error                 from the job's name, or an error
============================  =======================  ===========================================

A port that was not given may be in use. So the ranks agree on a free one, which rank 0 reserves::

    rank 0    accepts connections at the first free port of the job, and answers ranks with the job's key
    others    connect to the job's ports, one by one, until a process with the job's key answers

The job's ports follow from its name (`ports_of`), its key from its name and a secret (`job_secret`). Another
server at one of these ports, such as rank 0 of another job, does not have the key: it costs a second, and no
rank joins the wrong job.
"""

import json
import os
import re
import socket
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from samestep.base import env
from samestep.base.errors import DetectionError, PeerLost
from samestep.base.place import Place
from samestep.base.polling import polls, with_timeout
from samestep.base.process_identity import Ancestors, ancestors
from samestep.launchers import hostlist
from samestep.launchers.detect import LOOPBACK, Detected
from samestep.launchers.processors import launcher_processes
from samestep.launchers.registry import BY_NAME, ENVIRONMENT, SLURM
from samestep.ranks.rendezvous.authentication import BACKLOG, AuthenticationError, Peer, Server, connect
from samestep.ranks.rendezvous.job_secret import job_key

# Above the well-known services, below the ports that Linux (32768), Kubernetes (30000) and PyTorch's own
# default (29500) use.
PORTS = range(15000, 29000)
_TRIES = 8  # ports of a job, of which other programs may have some: a guess
_STRIDE = 1009  # prime: jobs whose first ports are adjacent have other ports far apart
_TIMEOUT_S = 10.0  # of the name server and of scontrol, which may not answer: a guess


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


def resolve(address: str, *, timeout_s: float = _TIMEOUT_S) -> str:
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
        if (slurm_address := address_of(address)) is not None:
            return resolve(slurm_address, timeout_s=timeout_s)
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


def address_of(node: str) -> str | None:
    """Return the address at which Slurm reaches a node; None if it has no other one than the node's name."""
    try:
        answer = subprocess.run(
            ["scontrol", "show", "node", node],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _ADDRESS.search(answer.stdout)
    return match[1] if match and match[1] != node else None


START_S = 120.0
"""Maximum seconds between the starts of two ranks: importing from a busy file system can take a minute."""

_ON_A_TERMINAL = (
    " Is this a shell that `srun --pty` has started? It is task 0, and those of the other tasks end at once: "
    "use salloc, or srun --ntasks=1 --pty."
)
_PROOF_S = 1.0  # seconds that a server at one of the ports has to prove the secret: a guess
_ANSWER_S = 60.0
"""Seconds for the answer of a server that has proved it: a rank of a busy node may get no core for a while,
and rank 0 does not wait for a rank that has asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Job of this rank, as all of its ranks derive it before the rendezvous."""

    name: str
    place: Place
    address: str
    key: bytes


@contextmanager
def rendezvous_endpoint(
    detected: Detected,
    *,
    master: tuple[str, int] | None = None,
    timeout_s: float = START_S,
    ancestors: Ancestors = ancestors,
) -> Iterator[tuple[str, int]]:
    """Yield the address and port of the rendezvous; on rank 0 the port is reserved until the block ends.

    Arguments are as in `choose`; `timeout_s` limits the time between the starts of two ranks.

    Raises:
        DetectionError: the address is unknown or not that of rank 0, or the job has no name.
        PeerLost: a rank did not arrive within `timeout_s`.
    """
    address, port = choose(detected, master=master, ancestors=ancestors)
    ip = resolve(address)
    if master is not None or detected.master_port is not None or detected.place.size == 1:
        yield address, port
        return
    name = name_of(detected, ancestors)
    # The key differs from that of another job with the same ports.
    key = job_key(env.snapshot(), f"rendezvous {name} {detected.place.size}")
    job = _Job(name=name, place=detected.place, address=address, key=key)
    if not detected.place.is_main:
        yield address, _port_of_rank_0(job, timeout_s)
        return
    if detected.master_addr is None:
        _check_own(ip, address)
    at = BindAddress.of(ip, job.place)
    hint = _ON_A_TERMINAL if detected.launcher == SLURM.name and os.isatty(0) else ""
    with reserved_port(at) as holder, _listening(job, at) as listener:
        chosen = int(holder.getsockname()[1])
        _send_port(listener, job, chosen, timeout_s, hint)
        yield address, chosen


@dataclass(frozen=True, slots=True)
class BindAddress:
    """Address of rank 0's sockets: loopback if all ranks share the host, else all addresses of both families.

    Rank 0's name may resolve differently on its own host (127.0.0.1 in many hosts files) and on the others,
    and the first address need not be the one that they use.
    """

    address: str
    family: socket.AddressFamily
    both: bool = False

    @classmethod
    def of(cls, ip: str, place: Place) -> "BindAddress":
        """Return the address for a rank 0 at `place`, which the others reach at `ip`."""
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        if ip in LOOPBACK and place.local_size == place.size:
            return cls(ip, family)
        if socket.has_dualstack_ipv6():
            return cls("", socket.AF_INET6, both=True)
        return cls("", family)

    def server(self, port: int) -> socket.socket:
        """Return a listening socket at this address and `port`."""
        return socket.create_server(
            (self.address, port), family=self.family, backlog=BACKLOG, dualstack_ipv6=self.both
        )


_ON_LOOPBACK = BindAddress(LOOPBACK[0], socket.AF_INET)


@contextmanager
def reserved_port(at: BindAddress = _ON_LOOPBACK) -> Iterator[socket.socket]:
    """Yield a socket that holds a free port, by default of loopback, until the block ends.

    The kernel gives a port that is bound, though not listening, to no other socket, except to one that allows
    sharing its address, as the store of rank 0 and torch's do.
    """
    with socket.socket(at.family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if at.both:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((at.address, 0))
        yield holder


def _listening(job: _Job, at: BindAddress) -> socket.socket:
    """Return a listening socket at the first free port of the job."""
    for port in ports_of(job.name):
        with suppress(OSError):  # another process has the port
            return at.server(port)
    raise DetectionError(
        f"none of the ports {', '.join(map(str, ports_of(job.name)))} is free on "
        f"{socket.gethostname()}. Set MASTER_PORT to the same free port on every rank."
    )


def _send_port(listener: socket.socket, job: _Job, port: int, timeout_s: float, hint: str = "") -> None:
    """Send the port to every other rank that has the key; `hint` names a further cause in the error."""
    service = _PortService(job, port)
    server = Server(listener, job.key, service, name="samestep-rendezvous")
    try:
        if not service.complete.wait(timeout_s):
            raise PeerLost(_missing_text(service.missing, job.place.size, timeout_s) + hint)
    finally:
        server.close()


class _PortService:
    """Service that sends the port to each rank that connects."""

    def __init__(self, job: _Job, port: int) -> None:
        self._port = port
        self.missing = set(range(1, job.place.size))
        self.complete = threading.Event()

    def received(self, peer: Peer, message: bytes) -> None:
        """See `Service.received`."""
        rank = json.loads(message)["rank"]
        peer.send(json.dumps({"port": self._port}).encode())
        self.missing.discard(rank)

    def gone(self, peer: Peer) -> None:
        """See `Service.gone`."""

    def passed(self, now: float) -> None:  # noqa: ARG002 - nothing is due at a time
        """See `Service.passed`."""
        if not self.missing:
            self.complete.set()


_NAMED = 8  # ranks that a message names: a guess at what is read


def _missing_text(waiting: set[int], size: int, timeout_s: float) -> str:
    missing = ", ".join(map(str, sorted(waiting)[:_NAMED])) + (", ..." if len(waiting) > _NAMED else "")
    return (
        f"rank {missing} of {size} did not come within {timeout_s:g} s. Did all of them start, do they reach "
        f"{socket.gethostname()}, and do they have the same secret? (Nodes that share no home directory need "
        "--secret-file.)"
    )


def _port_of_rank_0(job: _Job, timeout_s: float) -> int:
    """Return the port that rank 0 sends; poll until it answers."""
    foreign = False
    for _ in polls(timeout_s):
        for port in ports_of(job.name):
            answer = _ask(job, port)
            if isinstance(answer, int):
                return answer
            foreign |= isinstance(answer, AuthenticationError)
    hint = (
        " A program without this job's secret has one of the ports: nodes that share no home "
        "directory need --secret-file FILE, the same on each."
    )
    raise no_answer(f"on {job.address}", timeout_s, more=hint if foreign else "")


def _ask(job: _Job, port: int) -> int | Exception:
    """Return the port that rank 0 sends, or the error."""
    try:
        connection = connect(job.address, port, job.key, timeout_s=_PROOF_S)
        with closing(connection):
            question = json.dumps({"rank": job.place.rank}).encode()
            return int(json.loads(connection.ask(question, timeout_s=_ANSWER_S))["port"])
    except (OSError, ValueError) as error:  # no server at this port, or one that does not answer
        return error


def _check_own(ip: str, address: str) -> None:
    """Refuse a derived address that is not this host's."""
    if not any(map(_is_own, [(ip, 0), *_all_addresses(address)])):
        raise DetectionError(
            f"rank 0 runs on {socket.gethostname()}, but the rendezvous is on {address} ({ip}), which "
            "is another host. Set MASTER_ADDR to the host of rank 0, on every rank."
        )


def _all_addresses(address: str) -> list[tuple[str | int, ...]]:
    """Return all addresses of a name, with the scopes that link-local addresses need."""
    with suppress(OSError, UnicodeError):
        return [(entry[4][0], 0, *entry[4][2:]) for entry in socket.getaddrinfo(address, None)]
    return []


def _is_own(at: tuple[str | int, ...]) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in str(at[0]) else socket.AF_INET) as probe:
            probe.bind(at)
    except OSError:
        return False
    return True
