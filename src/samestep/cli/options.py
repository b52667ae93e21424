"""Declares the options that several verbs share, each once, and checks their values."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base.errors import UsageError
from samestep.ranks.collectives.algorithm_choice import ALGORITHMS

WORKERS_PANEL, SERIAL_PANEL, CLOCK_PANEL = "Workers", "Serial scripts", "Step clock"
TRAINING_PANEL, DATA_PANEL, RESULTS_PANEL = "Training", "Data", "Results"


def option(metavar: str, about: str, panel: str = "", *names: str) -> Any:
    """Return the declaration of an option.

    Args:
        metavar: the value in ``--help``; empty for the name of the type.
        about: the text in ``--help``.
        panel: the heading in ``--help``; empty for that of all options.
        names: the spellings; by default that of the parameter.
    """
    return typer.Option(*names, help=about, metavar=metavar or None, rich_help_panel=panel or None)


def switch(about: str, panel: str, *names: str) -> Any:
    """Return the declaration of an option without a value; see `option`."""
    return option("", about, panel, *names)


Figures = Annotated[
    Path | None,
    option("DIR", "Save each chart there as SVG, PDF and PNG, for a paper or slides.", RESULTS_PANEL),
]
Workers = Annotated[int | None, option("N", "Number of workers, on all nodes.", WORKERS_PANEL, "-n")]
WorkerCounts = Annotated[str, option("N,..", "Numbers of workers, such as 1,2,4.", WORKERS_PANEL, "-n")]
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
Bind = Annotated[str, BIND]
MaxRestarts = Annotated[
    int,
    option(
        "K",
        "Restart all workers up to K times after a failure; train resumes from its last checkpoint.",
        WORKERS_PANEL,
    ),
]
HANG_TIMEOUT = option(
    "SECONDS",
    "End the run when a rank has waited this long for another one; 0 disables the check.",
    WORKERS_PANEL,
)
HangTimeout = Annotated[float, HANG_TIMEOUT]
Mode = Annotated[
    str | None,
    option(
        "",
        "auto: detect the kind of script; autopilot: it is serial; native: start it as it is.",
        WORKERS_PANEL,
    ),
]
Module = Annotated[bool, switch("The program is a Python module.", "", "-m", "--module")]
DryRun = Annotated[bool, switch("Print what would be started, and start nothing.", "", "--dry-run")]
AsJson = Annotated[bool, switch("Print JSON instead of text.", RESULTS_PANEL, "--json")]

BatchNorm = Annotated[
    str | None,
    option("", "global: batch norm over the whole batch; local: over each worker's shard.", SERIAL_PANEL),
]
Split = Annotated[
    str | None,
    option(
        "", "call: shard the batch in each call of a model; loader: shard it as it is loaded.", SERIAL_PANEL
    ),
]
Load = Annotated[
    str | None,
    option(
        "",
        "shared: each worker loads its shard of a batch; replicated: the whole batch; auto: shared"
        " where that gives the same batch and is faster.",
        SERIAL_PANEL,
    ),
]
Random = Annotated[
    str | None,
    option(
        "",
        "global: the same random numbers as on one worker; per-worker: separate ones on each.",
        SERIAL_PANEL,
    ),
]
Device = Annotated[
    str | None,
    option(
        "",
        "auto: the device that the script names; cpu: the CPU, also for a script that names cuda.",
        SERIAL_PANEL,
    ),
]
Algorithm = Annotated[
    str | None,
    option(
        "NAME",
        f"The all-reduce of gradients: {', '.join(ALGORITHMS)}; by size, such as tree,ring:64K; or "
        "auto, the fastest that samestep bench all-reduce --save has measured.",
        SERIAL_PANEL,
    ),
]

Clock = Annotated[
    Path | None,
    option(
        "DIR",
        "Record each worker's steps in a file there: the duration of each step and of its phases.",
        CLOCK_PANEL,
    ),
]
ClockSteps = Annotated[int | None, option("K", "Stop the run after K recorded steps.", CLOCK_PANEL)]
ClockWarmUp = Annotated[int, option("W", "Steps before the first recorded one.", CLOCK_PANEL)]

MODEL = option("NAME", "convnet, resnet9, resnet18 ... resnet152.", TRAINING_PANEL)
BATCH_PER_WORKER = option(
    "B",
    "Samples per worker in each step. The global batch is N * B, so the training depends on N.",
    TRAINING_PANEL,
)
DataDir = Annotated[Path | None, option("DIR", "Folder of the data set.", DATA_PANEL)]


def efficiency(text: str) -> float:
    """Parse an efficiency, as a fraction or in percent.

    >>> efficiency("0.7"), efficiency("70%")
    (0.7, 0.7)

    Raises:
        UsageError: the text is not an efficiency above 0 and at most 1.
    """
    percent = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"--worth {text} is not an efficiency; give one such as 0.7 or 70%, at most 1.")
    return number


Worth = Annotated[
    float | None,
    typer.Option(
        metavar="EFFICIENCY",
        parser=efficiency,
        help="Report which numbers of workers reach this efficiency, such as 0.7 or 70%.",
        rich_help_panel=RESULTS_PANEL,
    ),
]


def refuse_unwritable(flag: str, folder: Path | None) -> None:
    """Refuse a folder that cannot be created or written to, before time is spent on its content.

    Args:
        flag: the option that has it.
        folder: the folder; nothing is created. None if the option was not given.

    Raises:
        UsageError: the folder, or the first of its parents that exists, is a file or not writable.
    """
    if folder is None:
        return
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "not writable" if there.is_dir() else "a file"
        raise UsageError(f"{flag} {folder} cannot be used, because {there} is {why}; give another folder.")


def checked_mode(mode: str | None) -> str:
    """Return the value of ``--mode``, which is ``auto`` if it was not given.

    Raises:
        UsageError: there is no such mode.
    """
    modes = ("auto", "autopilot", "native")
    if mode not in (None, *modes):
        raise UsageError(f"--mode {mode!r} is not one of {', '.join(modes)}.")
    return mode or "auto"


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
