"""Agrees on a free port for ranks that were given none: rank 0 reserves it and sends it to the others.

::

    rank 0    accepts connections at the first free port of the job, and answers ranks with the job's key
    others    connect to the job's ports, one by one, until a process with the job's key answers

The job's ports follow from its name (`rendezvous.ports_of`), its key from its name and a secret
(`job_secret`). Another server at one of these ports, such as rank 0 of another job, does not have the key: it
costs a second, and no rank joins the wrong job.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from samestep.base import env
from samestep.base.errors import DetectionError, PeerLost
from samestep.base.place import Place
from samestep.base.polling import polls
from samestep.base.process_identity import Ancestors, ancestors
from samestep.launchers.detect import LOOPBACK, Detected
from samestep.launchers.registry import SLURM
from samestep.ranks.rendezvous.authenticated_server import Peer, Server
from samestep.ranks.rendezvous.authentication import AuthenticationError, connect
from samestep.ranks.rendezvous.endpoint import choose, name_of, no_answer, ports_of, resolve
from samestep.ranks.rendezvous.job_secret import job_key

START_S = 120.0
"""Maximum seconds between the starts of two ranks: importing from a busy file system can take a minute."""

_ON_A_TERMINAL = (
    " Is this a shell that `srun --pty` has started? It is task 0, and those of the other tasks end at once: "
    "use salloc, or srun --ntasks=1 --pty."
)
_ANSWER_S = 1.0


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
            (self.address, port), family=self.family, backlog=1024, dualstack_ipv6=self.both
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


def _missing_text(waiting: set[int], size: int, timeout_s: float) -> str:
    missing = ", ".join(map(str, sorted(waiting)[:8])) + (", ..." if len(waiting) > 8 else "")
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
    others = (
        " A program without this job's secret has one of the ports: nodes that share no home "
        "directory need --secret-file FILE, the same on each."
    )
    raise no_answer(f"on {job.address}", timeout_s, more=others if foreign else "")


def _ask(job: _Job, port: int) -> int | Exception:
    """Return the port that rank 0 sends, or the error."""
    try:
        connection = connect(job.address, port, job.key, timeout_s=_ANSWER_S)
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
        return [(found[4][0], 0, *found[4][2:]) for found in socket.getaddrinfo(address, None)]
    return []


def _is_own(at: tuple[str | int, ...]) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in str(at[0]) else socket.AF_INET) as probe:
            probe.bind(at)
    except OSError:
        return False
    return True
