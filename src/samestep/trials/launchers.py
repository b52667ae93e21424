"""The commands that start a trial's workers on this host, by launcher."""

import shutil
import sys

from samestep.base.errors import UsageError
from samestep.trials.trial import SAMESTEP, Trial


def command(trial: Trial) -> list[str]:
    """Return the command that starts the workers of `trial` and waits for them.

    Raises:
        UsageError: its launcher is not here.
    """
    if trial.launcher in ("", SAMESTEP):
        return trial.started(sys.executable)
    if trial.launcher == "torchrun":
        return torchrun(trial, "--standalone")
    hint = "" if shutil.which("srun") is None else " Start this command in an allocation (salloc, sbatch)."
    raise UsageError(f"--compare launcher={trial.launcher}: this is no Slurm allocation.{hint}")


def torchrun(trial: Trial, *meeting: str) -> list[str]:
    """Return the command by which torchrun starts the workers of a node.

    Args:
        trial: whose workers.
        meeting: the flags that say how nodes meet.
    """
    size = (f"--nnodes={trial.nodes}", f"--nproc-per-node={trial.workers // trial.nodes}")
    logs = f"--log-dir={trial.scratch / 'torchrun'}"  # it would leave a folder where temporary ones are
    own = [sys.executable, "-m", "torch.distributed.run", *size, logs, *meeting]
    return [*own, *trial.as_task(sys.executable)[1:]]
