"""From the flags of ``samestep run`` to a Job."""

import ipaddress
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.machine import cpu_share
from samestep.launch.accelerators import workers_per_node
from samestep.launch.job import Job, Kind, Logs, Nodes, Program, Std
from samestep.launch.output import check_writable
from samestep.launch.plan import Join, Plan, endpoint, host_of
from samestep.measure.clock_file import ClockOptions
from samestep.world.detect import LOOPBACK

DEFAULT_PORT = 29500
"""torchrun's, for several nodes."""

_LAST_PORT = 65535

_SECONDS_AND_COUNTS = {
    "static": ("timeout",),
    "c10d": (
        *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt"),
    ),
}
"""The options of ``--rdzv-conf`` that are whole numbers."""

_YES_OR_NO = {"static": (), "c10d": ("is_host",)}
"""Those that are one of two words."""

_WORDS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")

_OUTPUT_OF = {
    "slurm": "srun --output=log_%t.txt",
    "openmpi": "mpirun --output-filename DIR",
    "torchrun": "torchrun --log-dir DIR --redirects 3",
}
"""How launchers keep their tasks' output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The flags that say how several nodes meet, as given."""

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
        UsageError: there is none such.
    """
    if module and no_python:
        raise UsageError("-m runs a Python module and --no-python an executable: give one of the two.")
    kind: Kind = "module" if module else "executable" if no_python else "script"
    if kind == "script" and (wrong := _not_a_script(target)):
        raise UsageError(
            f"{target} {wrong}. Give the path of a Python script, -m MODULE, or --no-python COMMAND."
        )
    if kind == "executable" and shutil.which(target) is None:
        raise UsageError(f"{target} is not an executable on the PATH, nor the path of one.")
    return Program(target=target, kind=kind, args=tuple(args))


def per_node(text: str | None) -> int | None:
    """Read ``--nproc-per-node``."""
    return None if text is None else workers_per_node(text, cpus=cpu_share().usable)


def logs(folder: Path | None, redirects: str, tee: str) -> Logs:
    """Return where output goes, with the folder made."""
    chosen = Logs(folder=folder, redirects=Std.parse("--redirects", redirects), tee=Std.parse("--tee", tee))
    check_writable(chosen)
    return chosen


def nodes(meeting: Meeting) -> Nodes:
    """Return how the nodes meet.

    Raises:
        UsageError: the flags contradict each other, or ask for what is not there.
    """
    least, count = _node_count(meeting.nnodes)
    if meeting.standalone and count > 1:
        raise UsageError(f"--standalone is a job on this node alone, but --nnodes is {count}.")
    port = meeting.master_port
    if port is not None and not 0 <= port <= _LAST_PORT:
        raise UsageError(f"--master-port {port} is no port: give one up to {_LAST_PORT}.")
    if meeting.backend not in ("", "static", "c10d"):
        raise UsageError(f"--rdzv-backend {meeting.backend} is not supported. Use c10d or static.")
    if least != count and meeting.backend != "c10d":
        raise UsageError(
            f"--nnodes {meeting.nnodes} needs nodes that agree on each new start, however many they are: use "
            "--rdzv-backend c10d --rdzv-endpoint HOST:PORT."
        )
    if count == 1:
        return _one_node(meeting)
    if meeting.endpoint and (meeting.master_addr or meeting.master_port):
        raise UsageError(
            f"--rdzv-endpoint {meeting.endpoint} says where the nodes meet, and so does --master-addr or "
            "--master-port. Give one of the two."
        )
    options = _options(meeting.options, meeting.backend or "static")
    if meeting.backend == "c10d":
        return Nodes(
            count=count,
            least=None if least == count else least,
            rank=meeting.node_rank,
            backend="c10d",
            endpoint=_with_port(meeting.endpoint or _address(meeting)),
            options=options,
        )
    return Nodes(
        count=count,
        rank=meeting.node_rank,
        endpoint=_with_port(_address(meeting) or meeting.endpoint),
        options=options,
    )


def refuse_unused(job: Job, settled: Plan, meeting: Meeting, *, launcher: str) -> None:
    """Refuse flags that say something about workers or nodes which this plan does not have.

    Raises:
        UsageError: names the flag and what to use in its place.
    """
    if not isinstance(settled, Join):
        given = meeting.master_addr if meeting.master_addr not in LOOPBACK else ""
        if settled.nodes.count == 1 and (given or meeting.master_port):
            flag = f"--master-addr {given}" if given else f"--master-port {meeting.master_port}"
            raise UsageError(
                f"{flag} is for several nodes. On one, samestep chooses a free port and tells the workers "
                "(MASTER_ADDR, MASTER_PORT): leave it out, or give --nnodes."
            )
        return
    tasks = f"the workers are the tasks that {launcher} started"
    kept = _OUTPUT_OF.get(launcher, "your launcher's own flag for it")
    flags = (
        ("--log-dir", job.logs.folder, f"it handles their output. Use {kept}"),
        ("--tee", not job.logs.tee.is_empty, f"it handles their output. Use {kept}"),
        ("--redirects", not job.logs.redirects.is_empty, f"it handles their output. Use {kept}"),
        ("--max-restarts", job.max_restarts, "only it can start them afresh. Have it requeue the job"),
    )
    for flag, value, instead in flags:
        if value:
            raise UsageError(
                f"{flag} does nothing here: {tasks}, and {instead}; or start one task per node, and the "
                "workers in it with -n."
            )


def master(meeting: Meeting) -> tuple[str | None, int | None]:
    """Return the address and the port where the ranks meet under another launcher, where the flags say."""
    return meeting.master_addr or None, meeting.master_port or (DEFAULT_PORT if meeting.master_addr else None)


def _not_a_script(target: str) -> str:
    """Say in words why a path cannot be run as a script; nothing if it can."""
    path = Path(target)
    if target == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        return "can be read only once, and each worker reads the script: save it to a file"
    if path.suffix == ".ipynb":
        return "is a notebook: export it (jupyter nbconvert --to script)"
    if path.is_file():
        return ""
    return "is a folder" if path.is_dir() else "does not exist"


def _one_node(meeting: Meeting) -> Nodes:
    host = host_of(_with_port(meeting.endpoint, least=0)) if meeting.endpoint else ""
    if host not in ("", *LOOPBACK, socket.gethostname()):
        raise UsageError(
            f"--rdzv-endpoint {meeting.endpoint} is where several nodes meet, but --nnodes is 1. Leave it "
            "out, or give --nnodes."
        )
    if meeting.options:
        raise UsageError(
            f"--rdzv-conf {meeting.options} is for several nodes, but --nnodes is 1. Leave it out."
        )
    return Nodes(rank=meeting.node_rank)


def _node_count(text: str) -> tuple[int, int]:
    """Return the fewest and the most nodes that ``--nnodes`` allows."""
    low, colon, high = text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError:
        raise UsageError(f"--nnodes {text!r} is neither a number of nodes nor a range like 1:4.") from None
    if least > most:
        raise UsageError(f"--nnodes {text}: the fewest nodes come first, as in {most}:{least}.")
    return least, most


def _address(meeting: Meeting) -> str:
    if not meeting.master_addr:
        return ""
    return endpoint(meeting.master_addr, meeting.master_port or DEFAULT_PORT)


def _with_port(text: str, *, least: int = 1) -> str:
    """Return an endpoint with a port, `least` or more; a bare address of IPv6 has none, whatever it says."""
    host, colon, port = text.rpartition(":")
    if not text or (colon and port.isdecimal() and host and not _is_address(text)):
        if text and not least <= int(port) <= _LAST_PORT:
            raise UsageError(f"--rdzv-endpoint {text}: {port} is no port. Give one up to {_LAST_PORT}.")
        return text
    return endpoint(text.strip("[]"), DEFAULT_PORT)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _options(text: str, backend: str) -> Mapping[str, str]:
    """Read ``--rdzv-conf``: what the back end would not read, or not understand, is refused."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    wrong = ["".join(pair) for pair in pairs if not (pair[0].strip() and pair[1])]
    if wrong:
        raise UsageError(f"--rdzv-conf {text!r}: {wrong[0]!r} is not of the form name=value.")
    options = {name.strip(): value.strip() for name, _, value in pairs}
    numbers, decisions = _SECONDS_AND_COUNTS[backend], _YES_OR_NO[backend]
    for name, value in options.items():
        if name not in (*numbers, *decisions):
            known = ", ".join((*numbers, *decisions))
            raise UsageError(f"--rdzv-conf {name}={value}: {backend} has no such option, only {known}.")
        if name in numbers and not (value.isdecimal() and int(value)):
            raise UsageError(f"--rdzv-conf {name}={value}: give a whole number, at least 1.")
        if name in decisions and value.lower() not in _WORDS:
            raise UsageError(f"--rdzv-conf {name}={value}: give yes or no.")
    return options


def clocking(folder: Path | None, *, steps: int | None, warm_up: int) -> ClockOptions | None:
    """Return what of each step is to be clocked.

    Raises:
        UsageError: it cannot be.
    """
    if folder is None:
        if steps is not None:
            raise UsageError("--clock-steps says when a clocked run stops: give --clock DIR too.")
        return None
    if steps is not None and steps < 1:
        raise UsageError(f"--clock-steps {steps}: a clocked run has at least one step.")
    if warm_up < 0:
        raise UsageError(f"--clock-warm-up {warm_up}: give how many steps go before, or 0.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--clock {folder} is a file: give a folder, in which each worker writes one.")
    return ClockOptions(folder=folder, steps=steps, warm_up=warm_up)
