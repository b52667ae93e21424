"""Runs a scaling study as Slurm jobs (``samestep scale --submit slurm``), and collects it (``--collect``)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.cli.main import INTERRUPTED
from samestep.cli.scale_study import finish, new_folder
from samestep.cli.slurm_flags import slurm_site
from samestep.cli.submit_common import refuse_without_sbatch
from samestep.launch.submit.quoting import slug
from samestep.launch.submit.site_defaults import SlurmSite
from samestep.studies.scaling.analysis.statements import statement
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.sweep.collect import Frame
from samestep.studies.scaling.sweep.queue import Queue, SubmittedJob
from samestep.studies.scaling.sweep.submitted import (
    StudyJob,
    jobs,
    read_jobs,
    submit_all,
    write_jobs,
)
from samestep.studies.scaling.sweep.trial import Trial

_FLAG_NAMES = {"directives": "directive", "modules": "load_module", "lines": "line"}
"""Names of options that differ from the fields of a site."""

_WITH_COLLECT = ("--collect", "--worth", "--figures", "--json")
"""Options that do not change how a study is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobs:
    """The runs of a study as Slurm jobs, one for each number of workers.

    Args:
        site: requests of all jobs.
        places: number of workers that can compute at the same time.
        per_node: maximum number of workers per node.
        gpus: whether each worker has a GPU.
        threads: compute threads of each worker, if the user gave a number.
        detach: whether jobs are submitted and not followed.
        what: the resources behind `places`, in words.
    """

    site: SlurmSite
    places: int
    per_node: int
    gpus: bool
    threads: int | None
    detach: bool
    what: str = "the resources of their job"

    def describe(self, frame: Frame, trials: Sequence[Trial]) -> str:
        """Return the jobs' scripts."""
        return "\n".join(job.script() for job in self._jobs(frame, trials))

    def execute(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int] | None:
        """Submit the jobs and follow them; return the study and the exit code, or None with ``--detach``.

        Raises:
            UsageError: there is no Slurm, it rejects a job, or the folder is in use or its disk is full.
            KeyboardInterrupt: it was interrupted before all jobs were submitted; then none stays submitted.
        """
        refuse_without_sbatch()
        made = self._jobs(frame, trials)
        if len(made) > 1:
            frame = replace(frame, notes=(statement("note", "separate-jobs"),))
        folder = frame.request.folder

        def record(taken: Sequence[SubmittedJob]) -> None:
            write_jobs(folder, taken, frame, sys.argv)
            job = taken[-1]
            nodes = counted(job.trials[0].nodes, "node")
            log(f"{job.in_words()} is submitted: {counted(len(job.trials), 'run')} on {nodes}.")

        with new_folder(folder):
            taken = submit_all(made, folder, record=record, report=log)
        if self.detach:
            print("\n".join(job.number for job in taken))
            return None
        return _followed(frame, trials, taken)

    def _jobs(self, frame: Frame, trials: Sequence[Trial]) -> list[StudyJob]:
        name = slug(Path(frame.request.target).name.removesuffix(".py"))
        return jobs(
            trials,
            frame.request.folder,
            name=f"scale-{name}",
            site=self.site,
            python=sys.executable,
            gpus=self.gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNode:
    """The flags about the workers and GPUs of a node.

    Args:
        workers: maximum number of workers; None for one per GPU, or for all workers without GPUs.
        gpus: number of GPUs; 0 for none.
    """

    workers: int | None
    gpus: int

    def flags(self) -> dict[str, int | None]:
        """Return the flags by name."""
        return {"nproc_per_node": self.workers, "gpus_per_node": self.gpus}

    def most(self, largest: int) -> int:
        """Return the maximum number of workers on a node.

        Args:
            largest: number of workers of the largest run.

        Raises:
            UsageError: it is below 1, or above the number of GPUs.
        """
        each = (self.gpus or largest) if self.workers is None else self.workers
        if each < 1:
            raise UsageError(f"--nproc-per-node is {each}; give at least 1.")
        if 0 < self.gpus < each:
            raise UsageError(
                f"--nproc-per-node {each} needs a GPU for each worker, but --gpus-per-node is {self.gpus}; "
                "ask for more GPUs or fewer workers."
            )
        return each


def slurm_jobs(
    scheduler: str,
    largest: int,
    site: Mapping[str, object],
    *,
    per_node: PerNode,
    threads: int | None,
    detach: bool,
) -> SlurmJobs:
    """Return Slurm jobs for the runs of a study.

    Args:
        scheduler: the value of ``--submit``.
        largest: number of workers of the largest run.
        site: the flags of the jobs.
        per_node: the flags about a node.
        threads: compute threads of each worker, if the user gave a number.
        detach: whether jobs are submitted and not followed.

    Raises:
        UsageError: a value is wrong.
    """
    if scheduler != "slurm":
        raise UsageError(f"--submit {scheduler!r} is not supported; give slurm.")
    return SlurmJobs(
        site=slurm_site(**site),
        places=largest,
        per_node=per_node.most(largest),
        gpus=per_node.gpus > 0,
        threads=threads,
        detach=detach,
    )


def collected_from(folder: Path, target: str | None, *, bar: float | None) -> tuple[Study, int]:
    """Collect the jobs of a study that was submitted before; return the study and the exit code.

    Args:
        folder: of the study.
        target: the target that the user gave too, which is an error.
        bar: the efficiency of ``--worth``, if it differs from that of the submission.

    Raises:
        UsageError: a target was given, or the folder has no submitted study.
    """
    if target is not None:
        raise UsageError(f"--collect {folder} has its own target; leave {target} out.")
    taken, frame, command = read_jobs(folder)
    frame = frame if bar is None else replace(frame, bar=bar)
    trials = sorted((trial for job in taken for trial in job.trials), key=lambda trial: trial.number)
    return _followed(frame, trials, taken, command=command)


def refuse_flags_with_collect(context: typer.Context) -> None:
    """Refuse options of a new study, because ``--collect`` collects an existing one.

    Args:
        context: of the command.

    Raises:
        UsageError: such an option was given.
    """
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        flag = max(one.opts, key=len)
        given = source is not None and source.name == "COMMANDLINE" and flag.startswith("-")
        if given and flag not in _WITH_COLLECT:
            raise UsageError(
                f"{flag} has no effect with --collect, which collects a study as it was submitted. Leave it "
                "out; only --worth, --figures and --json go with --collect."
            )


def refuse_flags_of_jobs(flags: Mapping[str, object]) -> None:
    """Refuse options of jobs without ``--submit``; the user may have meant them for the script.

    Raises:
        UsageError: one was given.
    """
    for name, value in flags.items():
        if value:
            flag = f"--{_FLAG_NAMES.get(name, name).replace('_', '-')}"
            raise UsageError(
                f"{flag} needs --submit slurm; give that too, or put an option of the script after --."
            )


def _followed(
    frame: Frame,
    trials: Sequence[Trial],
    taken: Sequence[SubmittedJob],
    *,
    command: Sequence[str] | None = None,
) -> tuple[Study, int]:
    """Follow jobs to their end; Ctrl-C ends the following, not the jobs."""
    study, code = finish(frame, trials, Queue(taken, report=log), command=command, continues=True)
    if code == INTERRUPTED:
        numbers = " ".join(job.number for job in taken)
        log(
            f"the jobs continue. To collect them: samestep scale --collect {frame.request.folder}; to end "
            f"them: scancel {numbers}"
        )
    return study, code
