"""What both ways to submit a job share: what it runs, where its files go, and following it."""

import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.errors import UsageError
from samestep.cli import job_flags, main
from samestep.cli.running import tell
from samestep.submit.follow import Followed, follow
from samestep.submit.words import slug
from samestep.submit.work import VERBS, Work, work

FOLDER = Path("jobs")
"""Where jobs and their logs are kept, below the folder they are submitted from."""

Target = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="A script, or a verb: run, train, bench, doctor.")
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Handed on untouched.")]
SOFTWARE = "Where the programs are"
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", metavar="NAME", help="To load; may be repeated.", rich_help_panel=SOFTWARE),
]
Container = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="To run the workers in.", rich_help_panel=SOFTWARE)
]
Lines = Annotated[
    list[str] | None,
    typer.Option("--line", metavar="SHELL", help="Before the workers start.", rich_help_panel=SOFTWARE),
]
JobName = Annotated[str | None, typer.Option("--job-name", "-J", metavar="NAME", help="Else the program's.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the job's number; do not follow it.")]

_MISPLACED = {"--nodes", "--gpus-per-node", "--hosts", "--hostfile", "--dry-run"}


def work_of(target: str, arguments: list[str]) -> Work:
    """Return what the job runs.

    Raises:
        UsageError: the script is not there, or the verb is none that several tasks can share.
    """
    if target not in VERBS:
        if target in main.VERBS and not Path(target).exists():
            raise UsageError(
                f"samestep {target} is no job for several workers. Submit a script, or one of the verbs "
                f"{', '.join(VERBS)}."
            )
        job_flags.program(target, arguments, module=False, no_python=False)
    misplaced = [word for word in arguments if word.partition("=")[0] in _MISPLACED]
    if misplaced:
        tell(f"{misplaced[0]} behind {target} was handed to it: the job's own flags come before.")
    return work([target, *arguments])


def refuse_without_sbatch() -> None:
    """Refuse to submit where there is no Slurm.

    Raises:
        UsageError: there is none.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine. Submit from a login node of the cluster, or see what would "
            "be submitted with --dry-run."
        )


def kept(name: str, text: str, *, suffix: str) -> Path:
    """Write a job's script to a new file; arguments that are no UTF-8 keep their bytes.

    Raises:
        UsageError: nothing can be written here.
    """
    try:
        file = _new_file(name, suffix)
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(
            f"the job cannot be kept in {FOLDER}/ here: {error.strerror}. Submit it from another folder."
        ) from None
    return file


def _new_file(name: str, suffix: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    stem = f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"  # noqa: DTZ005 - for people
    tries = (FOLDER / f"{stem}{'' if count == 1 else f'-{count}'}{suffix}" for count in range(1, 1000))
    return next(path for path in tries if not path.exists())


def show_script(text: str) -> None:
    """Print a job's script."""
    _show(text.encode("utf-8", errors="surrogateescape"))


def followed(job: Followed) -> int:
    """Follow a job to its end; Ctrl-C leaves it alone."""
    try:
        return follow(job, tell=tell, show=_show)
    except KeyboardInterrupt:
        tell(f"{job.name} goes on without being followed. To stop it: {job.stop}")
        return main.INTERRUPTED


def _show(text: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
