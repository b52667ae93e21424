"""``samestep scale --submit slurm`` and ``--collect``: the runs of a study as jobs of Slurm."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.cli.main import INTERRUPTED
from samestep.cli.running import tell
from samestep.cli.scale_study import finish, new_folder
from samestep.cli.slurm_flags import slurm_site
from samestep.cli.submitting import refuse_without_sbatch
from samestep.scaling.study import Study
from samestep.submit.site import SlurmSite
from samestep.submit.words import slug
from samestep.trials.collect import Frame
from samestep.trials.jobs import JobOptions, StudyJob, jobs
from samestep.trials.queue import Queue, SubmittedJob
from samestep.trials.submitted import read_jobs, submit_all, write_jobs
from samestep.trials.trial import Trial

_FLAGS = {"directives": "directive", "modules": "load_module", "lines": "line"}
"""Of a site's fields, where they have another name."""

_OF_COLLECTING = ("--collect", "--worth", "--json")
"""Flags that say nothing of how a study is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs of Slurm as the place of runs: one for each number of workers.

    Args:
        site: what all jobs ask for.
        places: workers that can compute at the same time: each has what its job asks for it.
        per_node: workers on a node at most.
        gpus: whether each worker has a GPU.
        threads: of each worker, if the user said.
        detach: whether jobs are submitted and not followed.
    """

    site: SlurmSite
    places: int
    per_node: int
    gpus: bool
    threads: int | None
    detach: bool
    what: str = "what their job asks for"

    def shown(self, frame: Frame, trials: Sequence[Trial]) -> str:
        """Return the jobs' scripts."""
        return "\n".join(job.script() for job in self._jobs(frame, trials))

    def made(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int] | None:
        """Submit the jobs and follow them; return the study and the exit code, None where detached.

        Raises:
            UsageError: there is no Slurm, it does not take a job, or the folder is taken or full.
            KeyboardInterrupt: somebody ended it before all jobs were submitted: then none is.
        """
        refuse_without_sbatch()
        made = self._jobs(frame, trials)
        frame = replace(frame, notes=_notes(made))
        folder = frame.request.folder

        def told(taken: Sequence[SubmittedJob]) -> None:
            write_jobs(folder, taken, frame, sys.argv)
            job = taken[-1]
            nodes = counted(job.trials[0].nodes, "node")
            tell(f"{job.in_words()} is submitted: {counted(len(job.trials), 'run')} on {nodes}.")

        with new_folder(folder):
            taken = submit_all(made, folder, record=told, report=tell)
        if self.detach:
            print("\n".join(job.number for job in taken))
            return None
        return _followed(frame, trials, taken)

    def _jobs(self, frame: Frame, trials: Sequence[Trial]) -> list[StudyJob]:
        name = slug(Path(frame.request.target).name.removesuffix(".py"))
        options = JobOptions(
            name=f"scale-{name}",
            folder=frame.request.folder,
            gpus=self.gpus,
            site=self.site,
            python=sys.executable,
        )
        return jobs(trials, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNode:
    """What a node holds, as the flags say.

    Args:
        workers: at most; None for as many as it has GPUs, or all of them.
        gpus: 0 for none.
    """

    workers: int | None
    gpus: int

    def flags(self) -> dict[str, int | None]:
        """Return them by name."""
        return {"nproc_per_node": self.workers, "gpus_per_node": self.gpus}

    def most(self, largest: int) -> int:
        """Return how many workers a node takes.

        Args:
            largest: workers of the largest run.

        Raises:
            UsageError: none, or more than it has GPUs for.
        """
        each = (self.gpus or largest) if self.workers is None else self.workers
        if each < 1:
            raise UsageError(f"--nproc-per-node {each}: there must be at least 1.")
        if 0 < self.gpus < each:
            raise UsageError(
                f"--nproc-per-node {each} workers cannot share --gpus-per-node {self.gpus}: each needs a GPU "
                "of its own. Ask for more GPUs or fewer workers."
            )
        return each


def in_jobs(
    scheduler: str,
    largest: int,
    site: Mapping[str, object],
    *,
    per_node: PerNode,
    threads: int | None,
    detach: bool,
) -> Jobs:
    """Return jobs as the place of runs.

    Args:
        scheduler: whose.
        largest: workers of the largest run.
        site: the flags of the jobs.
        per_node: what a node holds.
        threads: of each worker, if the user said.
        detach: whether jobs are submitted and not followed.

    Raises:
        UsageError: they cannot be asked for.
    """
    if scheduler != "slurm":
        raise UsageError(f"--submit {scheduler!r}: jobs can be submitted to slurm.")
    return Jobs(
        site=slurm_site(**site),
        places=largest,
        per_node=per_node.most(largest),
        gpus=per_node.gpus > 0,
        threads=threads,
        detach=detach,
    )


def collected_from(folder: Path, target: str | None, *, bar: float | None) -> tuple[Study, int]:
    """Go on with the jobs of a study that was submitted before; return it and the exit code.

    Args:
        folder: of the study.
        target: what else the user gave to be measured.
        bar: the efficiency that is asked for, if another than when it was submitted.

    Raises:
        UsageError: none was, from there.
    """
    if target is not None:
        raise UsageError(f"--collect {folder} goes on with the study that is there: leave {target} out.")
    taken, frame, command = read_jobs(folder)
    frame = frame if bar is None else replace(frame, bar=bar)
    trials = sorted((trial for job in taken for trial in job.trials), key=lambda trial: trial.number)
    return _followed(frame, trials, taken, command=command)


def refuse_beside_collect(context: typer.Context) -> None:
    """Refuse flags that say how a study is made where ``--collect`` goes on with one that is.

    Args:
        context: of the command.

    Raises:
        UsageError: one was given.
    """
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        flag = max(one.opts, key=len)
        given = source is not None and source.name == "COMMANDLINE" and flag.startswith("-")
        if given and flag not in _OF_COLLECTING:
            raise UsageError(
                f"{flag} says how a study is made, and --collect goes on with one as it was submitted: "
                "leave it out. Only --worth and --json go with --collect."
            )


def refuse_stray(flags: Mapping[str, object]) -> None:
    """Refuse flags of jobs where there are none: they may be meant for the script.

    Raises:
        UsageError: one was given.
    """
    for name, value in flags.items():
        if value:
            flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
            raise UsageError(
                f"{flag} is about jobs: give --submit slurm too. Flags of the script's own go behind --."
            )


def _notes(made: Sequence[StudyJob]) -> tuple[str, ...]:
    if len(made) == 1:
        return ()
    note = (
        "Each number of workers was a job of its own, so they did not have their turns in one place: what "
        "else went on at its time, on its nodes, is in the differences too."
    )
    return (note,)


def _followed(
    frame: Frame,
    trials: Sequence[Trial],
    taken: Sequence[SubmittedJob],
    *,
    command: Sequence[str] | None = None,
) -> tuple[Study, int]:
    """Follow jobs to their end; Ctrl-C ends the following, not the jobs."""
    study, code = finish(frame, trials, Queue(taken, report=tell), command=command, goes_on=True)
    if code == INTERRUPTED:
        numbers = " ".join(job.number for job in taken)
        tell(
            f"the jobs go on. To collect them: samestep scale --collect {frame.request.folder}; to end them: "
            f"scancel {numbers}"
        )
    return study, code
