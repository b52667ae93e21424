"""The jobs of a study: one for each number of workers, so that the queue can start the small ones early.

Each holds all runs with its number of workers, in the study's shuffled order. Pure: nothing is submitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.submit.request import SlurmRequest
from samestep.submit.sequence import RecordedCommand, script
from samestep.submit.site import SlurmSite
from samestep.trials.trial import Trial

FOLDER = "jobs"
"""Below the study's: scripts and logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What all jobs of a study ask for.

    Args:
        name: of the study.
        folder: of the study.
        gpus: whether each worker is to have a GPU.
        site: what else to ask for, and where the programs are.
        python: the interpreter that submits.
    """

    name: str
    folder: Path
    gpus: bool = False
    site: SlurmSite
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """One job.

    Args:
        asked: what it asks for.
        trials: its runs, in order.
    """

    asked: SlurmRequest
    trials: tuple[Trial, ...]

    def script(self) -> str:
        """Return what sbatch is to read."""
        return script(self.asked, [_kept(trial) for trial in self.trials], by="samestep scale")


def jobs(trials: Sequence[Trial], asking: Asking) -> list[StudyJob]:
    """Return the jobs that run `trials`, the smallest first.

    Raises:
        UsageError: somebody else than Slurm is to start the workers of one.
    """
    others = sorted({trial.launcher for trial in trials} - {"", "srun"})
    if others:
        raise UsageError(
            f"--compare launcher={others[0]}: the workers of a job are Slurm's tasks. Launchers are compared "
            "in an allocation: salloc, or a job script with samestep scale in it."
        )
    sizes = sorted({(trial.workers, trial.nodes) for trial in trials})
    return [
        StudyJob(
            asked=_request(workers, nodes, asking),
            trials=tuple(trial for trial in trials if trial.workers == workers),
        )
        for workers, nodes in sizes
    ]


def _request(workers: int, nodes: int, asking: Asking) -> SlurmRequest:
    return SlurmRequest(
        name=f"{asking.name}-{workers}",
        nodes=nodes,
        per_node=workers // nodes,
        gpus_per_node=workers // nodes if asking.gpus else 0,
        site=asking.site,
        output=str(asking.folder.absolute() / FOLDER / f"{workers}-%j.log"),
        python=asking.python,
    )


def _kept(trial: Trial) -> RecordedCommand:
    return RecordedCommand(words=trial.command, folder=trial.folder, variables=trial.environment)
