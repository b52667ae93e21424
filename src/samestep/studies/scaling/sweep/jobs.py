"""Builds the Slurm jobs of a study: one for each number of workers, so that small ones can start early.

Each job has all runs of its number of workers, in the study's shuffled order. Nothing is submitted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.launch.submit.resources import SlurmRequest
from samestep.launch.submit.sequence import RecordedCommand, script
from samestep.launch.submit.site_defaults import SlurmSite
from samestep.studies.scaling.sweep.trial import Trial

FOLDER = "jobs"
"""The subfolder of a study for scripts and logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """One job of a study.

    Args:
        request: its resources.
        trials: its runs, in order.
    """

    request: SlurmRequest
    trials: tuple[Trial, ...]

    def script(self) -> str:
        """Return the batch script."""
        return script(self.request, [_kept(trial) for trial in self.trials], by="samestep scale")


def jobs(
    trials: Sequence[Trial], *, name: str, folder: Path, gpus: bool = False, site: SlurmSite, python: str
) -> list[StudyJob]:
    """Return the jobs that execute `trials`, the smallest first.

    Args:
        trials: the runs.
        name: of the study.
        folder: of the study.
        gpus: whether each worker has a GPU.
        site: the options of the cluster.
        python: the interpreter that submits.

    Raises:
        UsageError: a run has a launcher other than Slurm.
    """
    others = sorted({trial.launcher for trial in trials} - {"", "srun"})
    if others:
        raise UsageError(
            f"--compare launcher={others[0]} does not work with --submit, since the workers are tasks of "
            "Slurm. Compare launchers in an allocation: salloc, or a job script that calls samestep scale."
        )
    return [
        StudyJob(
            request=SlurmRequest(
                name=f"{name}-{workers}",
                nodes=nodes,
                per_node=workers // nodes,
                gpus_per_node=workers // nodes if gpus else 0,
                site=site,
                output=str(folder.absolute() / FOLDER / f"{workers}-%j.log"),
                python=python,
            ),
            trials=tuple(trial for trial in trials if trial.workers == workers),
        )
        for workers, nodes in sorted({(trial.workers, trial.nodes) for trial in trials})
    ]


def _kept(trial: Trial) -> RecordedCommand:
    return RecordedCommand(words=trial.command, folder=trial.folder, variables=trial.environment)
