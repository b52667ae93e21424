"""Declares the options that several verbs share, each once, and checks their values."""

from pathlib import Path
from typing import Annotated

import typer

from samestep.base.errors import UsageError
from samestep.base.units import LONGEST_S
from samestep.collectives.crossovers import ALGORITHMS

WORKERS_PANEL, SERIAL_PANEL, CLOCK_PANEL = "Workers", "Serial scripts", "Step clock"
TRAINING_PANEL, DATA_PANEL, RESULTS_PANEL = "Training", "Data", "Results"

Workers = Annotated[
    int | None,
    typer.Option("-n", metavar="N", help="Number of workers, on all nodes.", rich_help_panel=WORKERS_PANEL),
]
WorkerCounts = Annotated[
    str,
    typer.Option(
        "-n", metavar="N,..", help="Numbers of workers, such as 1,2,4.", rich_help_panel=WORKERS_PANEL
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="T",
        help="Compute threads per worker. Default: its share of the cores (scale: at the largest -n).",
        rich_help_panel=WORKERS_PANEL,
    ),
]
BIND = typer.Option(
    help="core: cores of its own for each worker, near its GPU; numa: the NUMA node of those cores; none.",
    rich_help_panel=WORKERS_PANEL,
)
Bind = Annotated[str, BIND]
MaxRestarts = Annotated[
    int,
    typer.Option(
        metavar="K",
        help="Restart all workers up to K times after a failure; train resumes from its last checkpoint.",
        rich_help_panel=WORKERS_PANEL,
    ),
]
HANG_TIMEOUT = typer.Option(
    metavar="SECONDS",
    help="End the run when a rank has waited this long for another one; 0 disables the check.",
    rich_help_panel=WORKERS_PANEL,
)
HangTimeout = Annotated[float, HANG_TIMEOUT]
Mode = Annotated[
    str | None,
    typer.Option(
        help="auto: detect the kind of script; autopilot: it is serial; native: start it as it is.",
        rich_help_panel=WORKERS_PANEL,
    ),
]
Module = Annotated[bool, typer.Option("-m", "--module", help="The program is a Python module.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=RESULTS_PANEL)
]

BatchNorm = Annotated[
    str | None,
    typer.Option(
        help="global: batch norm over the whole batch; local: over each worker's shard.",
        rich_help_panel=SERIAL_PANEL,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="call: shard the batch in each call of a model; loader: shard it as it is loaded.",
        rich_help_panel=SERIAL_PANEL,
    ),
]
Load = Annotated[
    str | None,
    typer.Option(
        help="shared: each worker loads its shard of a batch; replicated: the whole batch; auto: shared"
        " where that gives the same batch and is faster.",
        rich_help_panel=SERIAL_PANEL,
    ),
]
Random = Annotated[
    str | None,
    typer.Option(
        help="global: the same random numbers as on one worker; per-worker: separate ones on each.",
        rich_help_panel=SERIAL_PANEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="auto: the device that the script names; cpu: the CPU, also for a script that names cuda.",
        rich_help_panel=SERIAL_PANEL,
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"The all-reduce of gradients: {', '.join(ALGORITHMS)}; by size, such as tree,ring:64K; or "
        "auto, the fastest that samestep bench all-reduce --save has measured.",
        rich_help_panel=SERIAL_PANEL,
    ),
]

Clock = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Record each worker's steps in a file there: the duration of each step and of its phases.",
        rich_help_panel=CLOCK_PANEL,
    ),
]
ClockSteps = Annotated[
    int | None,
    typer.Option(metavar="K", help="Stop the run after K recorded steps.", rich_help_panel=CLOCK_PANEL),
]
ClockWarmUp = Annotated[
    int,
    typer.Option(metavar="W", help="Steps before the first recorded one.", rich_help_panel=CLOCK_PANEL),
]

MODEL = typer.Option(
    metavar="NAME", help="convnet, resnet9, resnet18 ... resnet152.", rich_help_panel=TRAINING_PANEL
)
BATCH_PER_WORKER = typer.Option(
    metavar="B",
    help="Samples per worker in each step. The global batch is N * B, so the training depends on N.",
    rich_help_panel=TRAINING_PANEL,
)
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the data set.", rich_help_panel=DATA_PANEL)
]


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


def check_seconds(flag: str, seconds: float, *, zero: str = "") -> None:
    """Check a time limit.

    Args:
        flag: the option's name.
        seconds: its value.
        zero: the effect of 0; empty where 0 is not allowed.

    Raises:
        UsageError: the value is negative, not finite or too large, or 0 where that is not allowed.
    """
    if not 0 <= seconds <= LONGEST_S or (seconds == 0 and not zero):
        what = f"a number of seconds (0 {zero})" if zero else "a positive number of seconds"
        raise UsageError(f"{flag} is {seconds:g}; give {what}, at most {LONGEST_S:g}.")


def check_hang_timeout(seconds: float) -> None:
    """Check the value of ``--hang-timeout``.

    Raises:
        UsageError: it is not a time limit.
    """
    check_seconds("--hang-timeout", seconds, zero="disables the check")


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
