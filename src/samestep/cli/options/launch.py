"""Declares the options that start workers: their number, their threads and cores, and what they run."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base import env
from samestep.base.console import be_quiet, log
from samestep.base.errors import UsageError
from samestep.base.folders import PACKAGE
from samestep.base.machine.description import MOST_PER_CORE
from samestep.cli.options.declare import CLOCK_PANEL, JOBS_PANEL, WORKERS_PANEL, option, switch
from samestep.launch.job import Kind, Program
from samestep.launchers.processors import KINDS
from samestep.observe.clock_file import ClockOptions
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
    choices=KINDS,
)
HANG_TIMEOUT = option(
    "SECONDS",
    "End the run when a rank has waited this long for another one; 0 disables the check.",
    WORKERS_PANEL,
)


Oversubscribe = Annotated[
    bool,
    switch(
        f"Allow more than {MOST_PER_CORE} workers per core; for scale, more than cores or GPUs.",
        WORKERS_PANEL,
        "--oversubscribe",
    ),
]


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
    oversubscribe: Oversubscribe = False


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
