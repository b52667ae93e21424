"""Declares torchrun's options for several nodes, and turns them into the nodes of a job.

`launch` does not have them, since `report` imports it on systems without fork, and they need modules with it.
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from samestep.base.errors import UsageError
from samestep.cli.options.declare import option, switch
from samestep.launch.job import Job, Nodes
from samestep.launch.plan import Join, Plan, endpoint, host_of
from samestep.launchers.detect import LOOPBACK

DEFAULT_PORT = 29500
"""The port of torchrun, for several nodes."""

_PANEL = "Several nodes (torchrun's flags)"
_LAST_PORT = 65535  # ports are numbers of 16 bits

_NUMBERS = {
    "static": ("timeout",),
    "c10d": (
        *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt"),
    ),
}
"""Options of ``--rdzv-conf`` with a whole number, by back end."""

_YES_NO = {"static": (), "c10d": ("is_host",)}
_YES_NO_WORDS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")

_OUTPUT_OF = {
    "slurm": "srun --output=log_%t.txt",
    "flux": "flux run --output='log_{{taskid}}.txt'",
    "openmpi": "mpirun --output-filename DIR",
    "torchrun": "torchrun --log-dir DIR --redirects 3",
}
"""The command with which each launcher keeps its tasks' output in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The options of the rendezvous of several nodes."""

    nnodes: Annotated[
        str, option("N", "Number of nodes, or a range such as 1:4 with --rdzv-backend c10d.", _PANEL)
    ] = "1"
    node_rank: Annotated[int | None, option("RANK", "Rank of this node, from 0.", _PANEL)] = None
    master_addr: Annotated[str, option("HOST", "A host name or address of node 0.", _PANEL)] = ""
    master_port: Annotated[int | None, option("PORT", "A free port on node 0.", _PANEL)] = None
    rdzv_backend: Annotated[
        str, option("", "static (the flags above) or c10d.", _PANEL, choices=("static", "c10d"))
    ] = ""
    rdzv_endpoint: Annotated[str, option("HOST:PORT", "The endpoint of a c10d rendezvous.", _PANEL)] = ""
    rdzv_id: Annotated[str, option("ID", "The run's id. Default: a random one.", _PANEL)] = ""
    rdzv_conf: Annotated[str, option("K=V,..", "Options of the rendezvous.", _PANEL)] = ""
    standalone: Annotated[bool, switch("This node alone (the default).", _PANEL, "--standalone")] = False
    role: Annotated[str, option("NAME", "The value of ROLE_NAME for the workers.", _PANEL)] = "default"
    monitor_interval: Annotated[
        float, option("SECONDS", "Pause between two checks of the other nodes.", _PANEL)
    ] = 0.1

    def nodes(self) -> Nodes:
        """Return the nodes and their rendezvous.

        Raises:
            UsageError: the flags contradict each other, or have values that are not supported.
        """
        least, count = _node_count(self.nnodes)
        backend = self._backend()
        if self.master_port is not None and not 0 <= self.master_port <= _LAST_PORT:
            raise UsageError(f"--master-port {self.master_port} is not a port; give one up to {_LAST_PORT}.")
        if least != count and backend != "c10d":
            raise UsageError(
                f"--nnodes {self.nnodes} is a range, which needs --rdzv-backend c10d; give that and "
                "--rdzv-endpoint HOST:PORT."
            )
        if count == 1:
            self._check_one_node()
            return Nodes(rank=self.node_rank)
        address, port = self.master()
        return Nodes(
            count=count,
            least=None if least == count else least,
            rank=self.node_rank,
            backend=backend,
            endpoint=_with_port(endpoint(address, port or 0) if address else self.rdzv_endpoint),
            options=_conf(self.rdzv_conf, backend),
        )

    def master(self) -> tuple[str | None, int | None]:
        """Return the address and the port of node 0, as far as flags set them."""
        default = DEFAULT_PORT if self.master_addr else None
        return self.master_addr or None, self.master_port or default

    def _backend(self) -> Literal["static", "c10d"]:
        if self.rdzv_backend not in ("", "static", "c10d"):
            raise UsageError(f"--rdzv-backend {self.rdzv_backend} is not supported; use c10d or static.")
        return "c10d" if self.rdzv_backend == "c10d" else "static"

    def _check_one_node(self) -> None:
        """Refuse flags that need several nodes."""
        host = host_of(_with_port(self.rdzv_endpoint, least=0)) if self.rdzv_endpoint else ""
        if host not in ("", *LOOPBACK, socket.gethostname()):
            raise UsageError(
                f"--rdzv-endpoint {self.rdzv_endpoint} is for several nodes, but --nnodes is 1; leave it "
                "out, or give --nnodes."
            )


def refuse_unused(job: Job, plan: Plan, rendezvous: Rendezvous, *, launcher: str) -> None:
    """Refuse flags that have no effect with this plan.

    Raises:
        UsageError: there is one; the message names it and an alternative.
    """
    if not isinstance(plan, Join):
        address = rendezvous.master_addr if rendezvous.master_addr not in LOOPBACK else ""
        if plan.nodes.count == 1 and (address or rendezvous.master_port):
            flag = f"--master-addr {address}" if address else f"--master-port {rendezvous.master_port}"
            raise UsageError(
                f"{flag} is for several nodes; leave it out, or give --nnodes. On one node samestep sets "
                "MASTER_ADDR and MASTER_PORT to a free port."
            )
        return
    output = f"use {_OUTPUT_OF.get(launcher, 'an option of the launcher')}"
    flags = (
        ("--log-dir", job.logs.folder, output),
        ("--tee", not job.logs.tee.is_empty, output),
        ("--redirects", not job.logs.redirects.is_empty, output),
        ("--max-restarts", job.max_restarts, "let the launcher requeue the job"),
    )
    for flag, value, instead in flags:
        if value:
            raise UsageError(
                f"{flag} has no effect, because {launcher} started the workers; {instead}, or start one task "
                "per node and give -n."
            )


def _node_count(text: str) -> tuple[int, int]:
    """Return the minimum and the maximum of ``--nnodes``."""
    low, colon, high = text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError:
        raise UsageError(f"--nnodes {text!r} is neither a number of nodes nor a range such as 1:4.") from None
    if least > most:
        raise UsageError(f"--nnodes {text} has its maximum first; give {most}:{least}.")
    return least, most


def _with_port(text: str, *, least: int = 1) -> str:
    """Return an endpoint with a port of `least` or more; a bare IPv6 address has none, despite its colons."""
    host, colon, port = text.rpartition(":")
    if not text or (colon and port.isdecimal() and host and not _is_address(text)):
        if text and not least <= int(port) <= _LAST_PORT:
            raise UsageError(f"--rdzv-endpoint {text}: {port} is not a port; give one up to {_LAST_PORT}.")
        return text
    return endpoint(text.strip("[]"), DEFAULT_PORT)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _conf(text: str, backend: str) -> Mapping[str, str]:
    """Parse ``--rdzv-conf``; options and values that the back end does not have are refused."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    wrong = ["".join(pair) for pair in pairs if not (pair[0].strip() and pair[1])]
    if wrong:
        raise UsageError(f"--rdzv-conf {text!r}: {wrong[0]!r} is not of the form name=value.")
    options = {name.strip(): value.strip() for name, _, value in pairs}
    numbers, switches = _NUMBERS[backend], _YES_NO[backend]
    for name, value in options.items():
        if name not in (*numbers, *switches):
            known = ", ".join((*numbers, *switches))
            raise UsageError(f"--rdzv-conf {name}={value}: {backend} has no such option; it has {known}.")
        if name in numbers and not (value.isdecimal() and int(value)):
            raise UsageError(f"--rdzv-conf {name}={value} is not a whole number of at least 1.")
        if name in switches and value.lower() not in _YES_NO_WORDS:
            raise UsageError(f"--rdzv-conf {name}={value} is neither yes nor no.")
    return options
