"""Executes the runs of a scaling study as Slurm jobs, and collects them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.base.console import log
from samestep.base.errors import INTERRUPTED, UsageError
from samestep.base.units import counted
from samestep.launch.submit.quoting import slug
from samestep.launch.submit.site_defaults import SlurmSite
from samestep.launch.submit.slurm_commands import refuse_without_sbatch
from samestep.studies.scaling.analysis.statements import statement
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.sweep.collect import Frame
from samestep.studies.scaling.sweep.execution import finish, new_folder
from samestep.studies.scaling.sweep.queue import Queue, SubmittedJob
from samestep.studies.scaling.sweep.submitted import StudyJob, jobs, read_jobs, submit_all, write_jobs
from samestep.studies.scaling.sweep.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRuns:
    """The runs of a study as Slurm jobs, one for each number of workers.

    Args:
        site: requests of all jobs.
        places: number of workers that can compute at the same time.
        per_node: maximum number of workers per node.
        gpus: GPUs of each node; 0 for none.
        threads: compute threads of each worker, if the user gave a number.
        detach: whether jobs are submitted and not followed.
        what: the resources behind `places`, in words.
    """

    site: SlurmSite
    places: int
    per_node: int
    gpus: int
    threads: int | None
    detach: bool
    what: str = "the resources of their job"

    def __post_init__(self) -> None:
        if 0 < self.gpus < self.per_node:
            raise UsageError(
                f"--nproc-per-node {self.per_node} needs a GPU for each worker, but --gpus-per-node is "
                f"{self.gpus}; ask for more GPUs or fewer workers."
            )

    def describe(self, frame: Frame, trials: Sequence[Trial]) -> str:
        """Return the jobs' scripts."""
        return "\n".join(job.script() for job in self._jobs(frame, trials))

    def execute(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int] | str:
        """Submit the jobs; follow them and return the study and the exit code, or return their numbers.

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
            return "\n".join(job.number for job in taken)
        return _followed(frame, trials, taken)

    def _jobs(self, frame: Frame, trials: Sequence[Trial]) -> list[StudyJob]:
        name = slug(Path(frame.request.target).name.removesuffix(".py"))
        return jobs(
            trials,
            frame.request.folder,
            name=f"scale-{name}",
            gpus=self.gpus > 0,
            site=self.site,
            python=sys.executable,
        )


def collect(folder: Path, *, bar: float | None) -> tuple[Study, int]:
    """Collect the jobs of the study in `folder`; return the study and the exit code.

    Args:
        folder: of the study.
        bar: the efficiency of ``--worth``, if it differs from that of the submission.

    Raises:
        UsageError: the folder has no submitted study.
    """
    taken, frame, command = read_jobs(folder)
    frame = frame if bar is None else replace(frame, bar=bar)
    trials = sorted((trial for job in taken for trial in job.trials), key=lambda trial: trial.number)
    return _followed(frame, trials, taken, command=command)


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
