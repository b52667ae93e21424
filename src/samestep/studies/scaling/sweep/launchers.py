"""Builds the commands that start the workers of a run on this host, by launcher."""

import shutil
import sys

from samestep.base.errors import UsageError
from samestep.studies.scaling.sweep.trial import SAMESTEP, Trial


def command(trial: Trial) -> list[str]:
    """Return the command that starts the workers of `trial` and waits for them.

    Raises:
        UsageError: its launcher is not available here.
    """
    if trial.launcher in ("", SAMESTEP):
        return trial.launch_command(sys.executable)
    if trial.launcher == "torchrun":
        return torchrun(trial, "--standalone")
    hint = "" if shutil.which("srun") is None else " Start this command in an allocation (salloc, sbatch)."
    raise UsageError(f"--compare launcher={trial.launcher} needs a Slurm allocation, and this is none.{hint}")


def torchrun(trial: Trial, *rendezvous: str) -> list[str]:
    """Return the torchrun command that starts the workers of a node.

    Args:
        trial: the run.
        rendezvous: the flags of the rendezvous.
    """
    size = (f"--nnodes={trial.nodes}", f"--nproc-per-node={trial.workers // trial.nodes}")
    logs = f"--log-dir={trial.scratch / 'torchrun'}"  # the default leaves a folder in the temporary directory
    own = [sys.executable, "-m", "torch.distributed.run", *size, logs, *rendezvous]
    return [*own, *trial.task_command(sys.executable)[1:]]
