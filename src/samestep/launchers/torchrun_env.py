"""Refuses pods that were set up for torchrun, by torchrun's ``PET_`` variables, but run without it.

Platforms set these variables, which stand for torchrun's flags, in each of several pods. samestep takes no
configuration from them. Without torchrun, each pod would run as the only one, or as one worker in place of
several.
"""

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.units import whole
from samestep.launchers.detect import UNLAUNCHED, Detected
from samestep.launchers.registry import ENVIRONMENT

_ADVICE = (
    "Start it by torchrun, which reads them (`torchrun --no-python samestep run train.py`, or "
    "`torchrun train.py`), give them as flags (samestep run --nnodes --node-rank --nproc-per-node "
    "--master-addr), or unset them for a single process."
)
_NAMES = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")


def refuse_pods(env: Environment, found: Detected) -> None:
    """Refuse to run as one of several pods that were set up for torchrun, without torchrun.

    Args:
        env: variables of this process.
        found: the detected launcher and place.

    Raises:
        DetectionError: this is such a pod; the message has the variables and the remedy.
    """
    if found.launcher not in (UNLAUNCHED, ENVIRONMENT.name):
        return
    variables = ", ".join(f"{name}={env[name]}" for name in _NAMES if env.get(name))
    if found.place.size == 1 and (_most_nodes(env) > 1 or (integer(env, "PET_NODE_RANK") or 0) > 0):
        raise DetectionError(
            f"{variables}: this is one of several pods that were set up for torchrun, which did not start "
            f"this process, so that each would repeat the same run. {_ADVICE}"
        )
    per_pod = env.get("PET_NPROC_PER_NODE", "")
    if found.place.size > 1 and (whole(per_pod) or 1) > 1 and not env.get("LOCAL_RANK"):
        raise DetectionError(
            f"{variables}: RANK={env.get('RANK')} is the number of this pod, not of one of its {per_pod} "
            f"workers, which torchrun did not start. {_ADVICE}"
        )


def _most_nodes(env: Environment) -> int:
    """Return the maximum number of pods: ``PET_NNODES`` is a number, or minimum and maximum."""
    most = env.get("PET_NNODES", "").rpartition(":")[2]
    return whole(most) or 1
