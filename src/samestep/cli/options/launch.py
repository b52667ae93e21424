"""Declares the options that start workers: their number, threads and cores, their program, and their nodes."""

import ipaddress
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from samestep.base import env
from samestep.base.console import be_quiet, log
from samestep.base.errors import UsageError
from samestep.base.folders import PACKAGE
from samestep.cli.options.declare import CLOCK_PANEL, JOBS_PANEL, WORKERS_PANEL, option, switch
from samestep.launch.job import Job, Kind, Nodes, Program
from samestep.launch.plan import Join, Plan, endpoint, host_of
from samestep.launchers.detect import LOOPBACK
from samestep.observe.clock.clock_file import ClockOptions
from samestep.submit.site_defaults import SIZE_PANEL

Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the program.")]
Module = Annotated[bool, switch("The program is a Python module.", "", "-m", "--module")]
GpusPerNode = Annotated[int, option("G", "GPUs of each node, one for each worker.", SIZE_PANEL)]
Detach = Annotated[bool, switch("Print the job's number, and do not follow the job.", JOBS_PANEL, "--detach")]
DryRun = Annotated[bool, switch("Print what would be started, and start nothing.", "", "--dry-run")]


def _be_quiet(quiet: bool) -> bool:
    if quiet:
        be_quiet()
    return quiet


Quiet = Annotated[
    bool, option("", "Print only results, warnings and errors.", "", "--quiet", callback=_be_quiet)
]
WorkerCount = Annotated[
    int | None, option("N", "Number of workers, on all nodes.", WORKERS_PANEL, "-n", "--workers")
]
WorkerCounts = Annotated[
    str, option("N,..", "Numbers of workers, such as 1,2,4.", WORKERS_PANEL, "-n", "--workers")
]
Threads = Annotated[
    int | None,
    option(
        "T",
        "Compute threads per worker. Default: its share of the cores (scale: at the largest -n).",
        WORKERS_PANEL,
    ),
]
BIND = option(
    "",
    "core: cores of its own for each worker, near its GPU; numa: the NUMA node of those cores; none.",
    WORKERS_PANEL,
)
HANG_TIMEOUT = option(
    "SECONDS",
    "End the run when a rank has waited this long for another one; 0 disables the check.",
    WORKERS_PANEL,
)


def _export_secret(file: str) -> str:
    if file:
        env.export({env.SECRET_FILE: str(Path(file).absolute())})
    return file


SecretFile = Annotated[
    str,
    option(
        "FILE",
        "File with the secret of the job, for nodes that share no home directory.",
        WORKERS_PANEL,
        callback=_export_secret,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The options of a verb that starts or joins ranks."""

    workers: WorkerCount = None
    secret_file: SecretFile = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The options of a verb whose workers compute."""

    workers: WorkerCount = None
    threads: Threads = None
    bind: Annotated[str, BIND] = "none"
    secret_file: SecretFile = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedWorkers(Workers):
    """The options of a verb whose workers are watched, and restarted after a failure."""

    max_restarts: Annotated[
        int,
        option(
            "K",
            "Restart all workers up to K times after a failure; train resumes from its last checkpoint.",
            WORKERS_PANEL,
        ),
    ] = 0
    hang_timeout: Annotated[float, HANG_TIMEOUT] = 60.0


AUTO = "auto"
"""The value of ``-n`` for a number of workers that is measured."""


def worker_count(text: str) -> int | str:
    """Return the value of ``-n``: a number of workers, or `AUTO`.

    Raises:
        UsageError: it is neither.
    """
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise UsageError(f"-n {text!r} is neither a number of workers nor {AUTO}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWorkers(WatchedWorkers):
    """The options of ``run``, whose number of workers can be measured."""

    workers: Annotated[
        Any,
        option(
            "N",
            "Number of workers, on all nodes; auto: measure the serial script's steps on this host's cores, "
            "and choose workers and threads.",
            WORKERS_PANEL,
            "-n",
            "--workers",
            parser=worker_count,
        ),
    ] = None

    @property
    def number(self) -> int | None:
        """The number of workers, if one was given."""
        return None if self.workers == AUTO else self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The options of the step clock."""

    clock: Annotated[
        Path | None,
        option(
            "DIR",
            "Record each worker's steps in a file there: the duration of each step and of its phases.",
            CLOCK_PANEL,
        ),
    ] = None
    clock_steps: Annotated[int | None, option("K", "Stop the run after K recorded steps.", CLOCK_PANEL)] = (
        None
    )
    clock_warm_up: Annotated[int, option("W", "Steps before the first recorded one.", CLOCK_PANEL)] = 5

    def checked(self) -> ClockOptions | None:
        """Return which steps are recorded, and where; None without ``--clock``.

        Raises:
            UsageError: a value is wrong, or the folder cannot be used.
        """
        folder, steps, warm_up = self.clock, self.clock_steps, self.clock_warm_up
        if folder is None:
            return None
        if steps is not None and steps < 1:
            raise UsageError(f"--clock-steps is {steps}; give at least 1.")
        if warm_up < 0:
            raise UsageError(f"--clock-warm-up is {warm_up}; give a number of steps, or 0.")
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"--clock {folder} is a file; give a folder, in which each worker writes a file."
            )
        return ClockOptions(folder=folder, steps=steps, warm_up=warm_up)


_OF_WORKERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "srun", "mpirun", "mpiexec"),
    *("accelerate", "accelerate.commands.launch", "deepspeed", "composer", "horovodrun"),
)
"""Commands, and modules with a dot, that start workers: each of samestep's would start a whole run."""
LAUNCHERS = (*_OF_WORKERS, "python", "python3")
"""Commands that are typed before a script, which samestep replaces."""


def worker_counts(text: str) -> list[int]:
    """Return the numbers in a ``-n N,..``, sorted.

    Raises:
        UsageError: the text is not a list of numbers, or one of them is below 1.
    """
    try:
        counts = sorted(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"-n {text!r} is not a list of numbers of workers, such as 1,2,4.") from None
    if counts[0] < 1:
        raise UsageError(f"-n {text}: each number of workers must be at least 1.")
    return counts


def program(target: str, args: Sequence[str] = (), *, module: bool, no_python: bool = False) -> Program:
    """Return the program to run.

    Raises:
        UsageError: there is no such program.
    """
    kind: Kind = "module" if module else "executable" if no_python else "script"
    refuse_launcher(target, kind)
    if kind == "script" and (wrong := _not_a_script(target)):
        raise UsageError(
            f"{target} {wrong}. Give the path of a Python script, -m MODULE, or --no-python COMMAND."
        )
    if kind == "executable" and shutil.which(target) is None:
        raise UsageError(f"{target} is neither an executable on the PATH nor the path of one.")
    if kind == "script":
        _warn_of_hidden_module(Path(target))
    return Program(target=target, kind=kind, args=tuple(args))


def _warn_of_hidden_module(script: Path) -> None:
    """Warn of a module beside a script that has the name of this package: the script cannot import it."""
    folder = script.resolve().parent
    for module in (folder / "samestep.py", folder / "samestep" / "__init__.py"):
        if module.is_file() and module != script.resolve() and str(module.parent) != PACKAGE:
            log(f"warning: {script} imports the installed samestep, not {module}. Rename that to import it.")


def refuse_launcher(target: str, kind: Kind) -> None:
    """Refuse a launcher that was typed before the script.

    Raises:
        UsageError: it is one.
    """
    name = Path(target).name
    starts_workers = name in _OF_WORKERS and (kind != "module" or "." in name)
    if starts_workers or (kind == "script" and name in LAUNCHERS and _not_a_script(target)):
        raise UsageError(f"samestep replaces {name}: give the script itself, without {name} and its flags.")


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


DEFAULT_PORT = 29500
"""The port of torchrun, for several nodes."""

_NODES_PANEL = "Several nodes (torchrun's flags)"
_LAST_PORT = 65535  # ports are numbers of 16 bits

_NUMBER_OPTIONS = {
    "static": ("timeout",),
    "c10d": (
        *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt"),
    ),
}
"""Options of ``--rdzv-conf`` with a whole number, by back end."""

_YES_NO_OPTIONS = {"static": (), "c10d": ("is_host",)}
_YES_NO_WORDS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")

_OUTPUT_OF = {
    "slurm": "srun --output=log_%t.txt",
    "openmpi": "mpirun --output-filename DIR",
    "torchrun": "torchrun --log-dir DIR --redirects 3",
}
"""The command with which each launcher keeps its tasks' output in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The options of the rendezvous of several nodes."""

    nnodes: Annotated[str, option("", "Number of nodes.", _NODES_PANEL)] = "1"
    node_rank: Annotated[int | None, option("", "Rank of this node, from 0.", _NODES_PANEL)] = None
    master_addr: Annotated[str, option("", "A host name or address of node 0.", _NODES_PANEL)] = ""
    master_port: Annotated[int | None, option("", "A free port on node 0.", _NODES_PANEL)] = None
    rdzv_backend: Annotated[str, option("", "static (the flags above) or c10d.", _NODES_PANEL)] = ""
    rdzv_endpoint: Annotated[str, option("HOST:PORT", "The endpoint of a c10d rendezvous.", _NODES_PANEL)] = (
        ""
    )
    rdzv_id: Annotated[str, option("", "The run's id. Default: a random one.", _NODES_PANEL)] = ""
    rdzv_conf: Annotated[str, option("K=V,..", "Options of the rendezvous.", _NODES_PANEL)] = ""
    standalone: Annotated[bool, switch("This node alone (the default).", _NODES_PANEL, "--standalone")] = (
        False
    )
    role: Annotated[str, option("", "The value of ROLE_NAME for the workers.", _NODES_PANEL)] = "default"
    monitor_interval: Annotated[
        float, option("", "Seconds between two checks of the other nodes.", _NODES_PANEL)
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
            options=_rendezvous_options(self.rdzv_conf, backend),
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


def _rendezvous_options(text: str, backend: str) -> Mapping[str, str]:
    """Parse ``--rdzv-conf``; options and values that the back end does not have are refused."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    wrong = ["".join(pair) for pair in pairs if not (pair[0].strip() and pair[1])]
    if wrong:
        raise UsageError(f"--rdzv-conf {text!r}: {wrong[0]!r} is not of the form name=value.")
    options = {name.strip(): value.strip() for name, _, value in pairs}
    numbers, switches = _NUMBER_OPTIONS[backend], _YES_NO_OPTIONS[backend]
    for name, value in options.items():
        if name not in (*numbers, *switches):
            known = ", ".join((*numbers, *switches))
            raise UsageError(f"--rdzv-conf {name}={value}: {backend} has no such option; it has {known}.")
        if name in numbers and not (value.isdecimal() and int(value)):
            raise UsageError(f"--rdzv-conf {name}={value} is not a whole number of at least 1.")
        if name in switches and value.lower() not in _YES_NO_WORDS:
            raise UsageError(f"--rdzv-conf {name}={value} is neither yes nor no.")
    return options
