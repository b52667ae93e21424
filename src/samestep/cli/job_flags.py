"""Turns the flags of ``samestep run`` into a job: its program, its logs, its nodes and its clock."""

import ipaddress
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import workers_per_node
from samestep.base.machine.description import cpu_share
from samestep.launch.job import Job, Kind, Logs, Nodes, Program, Std
from samestep.launch.local.output import check_writable
from samestep.launch.plan import Join, Plan, endpoint, host_of
from samestep.launchers.detect import LOOPBACK
from samestep.observe.clock.clock_file import ClockOptions

DEFAULT_PORT = 29500
"""The port of torchrun, for several nodes."""

_LAST_PORT = 65535

_NUMBERS = {
    "static": ("timeout",),
    "c10d": (
        *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt"),
    ),
}
"""Options of ``--rdzv-conf`` with a whole number, by back end."""

_YES_NO = {"static": (), "c10d": ("is_host",)}
"""Options with yes or no."""

_YES_NO_WORDS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")

_OUTPUT_OF = {
    "slurm": "srun --output=log_%t.txt",
    "openmpi": "mpirun --output-filename DIR",
    "torchrun": "torchrun --log-dir DIR --redirects 3",
}
"""The command with which each launcher keeps its tasks' output in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The flags of the rendezvous of several nodes, as given."""

    nnodes: str = "1"
    node_rank: int | None = None
    master_addr: str = ""
    master_port: int | None = None
    backend: str = ""
    endpoint: str = ""
    options: str = ""
    standalone: bool = False


def program(target: str, args: list[str], *, module: bool, no_python: bool) -> Program:
    """Return the program to run.

    Raises:
        UsageError: there is no such program.
    """
    if module and no_python:
        raise UsageError("-m runs a Python module and --no-python an executable; give only one of them.")
    kind: Kind = "module" if module else "executable" if no_python else "script"
    if kind == "script" and (wrong := _not_a_script(target)):
        raise UsageError(
            f"{target} {wrong}. Give the path of a Python script, -m MODULE, or --no-python COMMAND."
        )
    if kind == "executable" and shutil.which(target) is None:
        raise UsageError(f"{target} is neither an executable on the PATH nor the path of one.")
    return Program(target=target, kind=kind, args=tuple(args))


def per_node(text: str | None) -> int | None:
    """Read ``--nproc-per-node``."""
    return None if text is None else workers_per_node(text, cpus=cpu_share().usable)


def logs(folder: Path | None, redirects: str, tee: str) -> Logs:
    """Return where the output goes; the folder is created."""
    chosen = Logs(folder=folder, redirects=Std.parse("--redirects", redirects), tee=Std.parse("--tee", tee))
    check_writable(chosen)
    return chosen


def nodes(rendezvous: Rendezvous) -> Nodes:
    """Return the nodes and their rendezvous.

    Raises:
        UsageError: the flags contradict each other, or have values that are not supported.
    """
    least, count = _node_count(rendezvous.nnodes)
    if rendezvous.standalone and count > 1:
        raise UsageError(f"--standalone is for one node, but --nnodes is {count}; leave out one of the two.")
    port = rendezvous.master_port
    if port is not None and not 0 <= port <= _LAST_PORT:
        raise UsageError(f"--master-port {port} is not a port; give one up to {_LAST_PORT}.")
    if rendezvous.backend not in ("", "static", "c10d"):
        raise UsageError(f"--rdzv-backend {rendezvous.backend} is not supported; use c10d or static.")
    if least != count and rendezvous.backend != "c10d":
        raise UsageError(
            f"--nnodes {rendezvous.nnodes} is a range, which needs --rdzv-backend c10d; give that and "
            "--rdzv-endpoint HOST:PORT."
        )
    if count == 1:
        return _one_node(rendezvous)
    if rendezvous.endpoint and (rendezvous.master_addr or rendezvous.master_port):
        raise UsageError(
            f"--rdzv-endpoint {rendezvous.endpoint} and --master-addr or --master-port both set the "
            "endpoint; give only one of them."
        )
    options = _options(rendezvous.options, rendezvous.backend or "static")
    if rendezvous.backend == "c10d":
        return Nodes(
            count=count,
            least=None if least == count else least,
            rank=rendezvous.node_rank,
            backend="c10d",
            endpoint=_with_port(rendezvous.endpoint or _address(rendezvous)),
            options=options,
        )
    return Nodes(
        count=count,
        rank=rendezvous.node_rank,
        endpoint=_with_port(_address(rendezvous) or rendezvous.endpoint),
        options=options,
    )


def refuse_unused(job: Job, plan: Plan, rendezvous: Rendezvous, *, launcher: str) -> None:
    """Refuse flags that have no effect with this plan.

    Raises:
        UsageError: there is one; the message names it and an alternative.
    """
    if not isinstance(plan, Join):
        given = rendezvous.master_addr if rendezvous.master_addr not in LOOPBACK else ""
        if plan.nodes.count == 1 and (given or rendezvous.master_port):
            flag = f"--master-addr {given}" if given else f"--master-port {rendezvous.master_port}"
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


def master(rendezvous: Rendezvous) -> tuple[str | None, int | None]:
    """Return the address and the port of the rendezvous under another launcher, as far as flags set them."""
    return rendezvous.master_addr or None, rendezvous.master_port or (
        DEFAULT_PORT if rendezvous.master_addr else None
    )


def _not_a_script(target: str) -> str:
    """Return why a path cannot be run as a script; empty if it can."""
    path = Path(target)
    if target == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        return "can be read only once, but each worker reads the script; save it to a file"
    if path.suffix == ".ipynb":
        return "is a notebook; export it (jupyter nbconvert --to script)"
    if path.is_file():
        return ""
    return "is a folder" if path.is_dir() else "does not exist"


def _one_node(rendezvous: Rendezvous) -> Nodes:
    host = host_of(_with_port(rendezvous.endpoint, least=0)) if rendezvous.endpoint else ""
    if host not in ("", *LOOPBACK, socket.gethostname()):
        raise UsageError(
            f"--rdzv-endpoint {rendezvous.endpoint} is for several nodes, but --nnodes is 1; leave it out, "
            "or give --nnodes."
        )
    if rendezvous.options:
        raise UsageError(
            f"--rdzv-conf {rendezvous.options} is for several nodes, but --nnodes is 1; leave it out."
        )
    return Nodes(rank=rendezvous.node_rank)


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


def _address(rendezvous: Rendezvous) -> str:
    if not rendezvous.master_addr:
        return ""
    return endpoint(rendezvous.master_addr, rendezvous.master_port or DEFAULT_PORT)


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


def _options(text: str, backend: str) -> Mapping[str, str]:
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


def clocking(folder: Path | None, *, steps: int | None, warm_up: int) -> ClockOptions | None:
    """Return which steps are recorded, and where; None without ``--clock``.

    Raises:
        UsageError: a value is wrong, or the folder cannot be used.
    """
    if folder is None:
        if steps is not None:
            raise UsageError("--clock-steps needs --clock DIR; give it too.")
        return None
    if steps is not None and steps < 1:
        raise UsageError(f"--clock-steps is {steps}; give at least 1.")
    if warm_up < 0:
        raise UsageError(f"--clock-warm-up is {warm_up}; give a number of steps, or 0.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--clock {folder} is a file; give a folder, in which each worker writes a file.")
    return ClockOptions(folder=folder, steps=steps, warm_up=warm_up)
