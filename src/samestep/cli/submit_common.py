"""Holds what both kinds of submitted jobs share: options, the stored script, and following the job."""

import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.cli import job_flags, main
from samestep.cli.options import option, switch
from samestep.launch.submit.follow import FollowedJob, follow
from samestep.launch.submit.job_command import VERBS, Work, work
from samestep.launch.submit.quoting import slug

FOLDER = Path("jobs")
"""The folder for jobs and their logs, in the working folder."""

Target = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="A script, or a verb: run, train, bench or doctor.")
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the program.")]
SOFTWARE = "Software"
Modules = Annotated[
    list[str] | None, option("NAME", "Environment module to load; repeatable.", SOFTWARE, "--module")
]
Venv = Annotated[str | None, option("DIR", "Virtual environment to activate.", SOFTWARE)]
Container = Annotated[str | None, option("IMAGE", "Container image of the workers.", SOFTWARE)]
Lines = Annotated[
    list[str] | None,
    option("SHELL", "Line of shell to run before the workers start; repeatable.", SOFTWARE, "--line"),
]
JobName = Annotated[
    str | None, option("NAME", "Name of the job. Default: that of the program.", "", "--job-name", "-J")
]
Detach = Annotated[bool, switch("Print the job's number, and do not follow the job.", "", "--detach")]

_MISPLACED = {"--nodes", "--gpus-per-node", "--hosts", "--hostfile", "--dry-run"}


def work_of(target: str, arguments: list[str]) -> Work:
    """Return the command that the job runs.

    Raises:
        UsageError: the script does not exist, or the verb cannot run on several workers.
    """
    if target not in VERBS:
        if target in main.VERBS and not Path(target).exists():
            raise UsageError(
                f"samestep {target} does not run on several workers; submit a script, or one of the verbs "
                f"{', '.join(VERBS)}."
            )
        job_flags.program(target, arguments, module=False, no_python=False)
    misplaced = [word for word in arguments if word.partition("=")[0] in _MISPLACED]
    if misplaced:
        log(f"`{misplaced[0]}` after {target} was passed to it; an option of the job goes before {target}.")
    return work([target, *arguments])


def refuse_without_sbatch() -> None:
    """Refuse to submit a job without Slurm.

    Raises:
        UsageError: there is no sbatch.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine; submit from a login node of the cluster, or print the job "
            "with --dry-run."
        )


def store_script(name: str, text: str, *, suffix: str) -> Path:
    """Write a job's script to a new file, and return it; arguments that are not UTF-8 keep their bytes.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        file = _new_file(name, suffix)
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(
            f"cannot write the job to {FOLDER}/: {error.strerror}. Submit it from another folder."
        ) from None
    return file


def _new_file(name: str, suffix: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    stem = f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"  # noqa: DTZ005 - local time, for readers
    tries = (FOLDER / f"{stem}{'' if count == 1 else f'-{count}'}{suffix}" for count in range(1, 1000))
    return next(path for path in tries if not path.exists())


def print_script(text: str) -> None:
    """Print a job's script."""
    _print(text.encode("utf-8", errors="surrogateescape"))


def follow_job(job: FollowedJob) -> int:
    """Follow a job to its end, and return its exit code; Ctrl-C ends the following, not the job."""
    try:
        return follow(job, log=log, show=_print)
    except KeyboardInterrupt:
        log(f"{job.name} continues, and is no longer followed. To stop it: {job.stop}")
        return main.INTERRUPTED


def _print(text: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
