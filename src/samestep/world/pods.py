"""torchrun's variables for its own flags (``PET_``), which platforms set in each of several pods.

samestep does not read them. Where nobody started torchrun, each pod would take itself for the only one, or
for one worker in place of several.
"""

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.units import whole
from samestep.world.detect import UNLAUNCHED, Detected
from samestep.world.launchers import ENVIRONMENT

_ADVICE = (
    "Start it by torchrun, which reads them (`torchrun --no-python samestep run train.py`, or "
    "`torchrun train.py`), say the same in flags (samestep run --nnodes --node-rank --nproc-per-node "
    "--master-addr), or unset them for a single process."
)
_NAMES = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")


def refuse_pods(env: Environment, found: Detected) -> None:
    """Refuse to be one of several pods that were set up for torchrun, without it.

    Args:
        env: of this process.
        found: who started it.

    Raises:
        DetectionError: names the variables and says what to do.
    """
    if found.launcher not in (UNLAUNCHED, ENVIRONMENT.name):
        return
    told = ", ".join(f"{name}={env[name]}" for name in _NAMES if env.get(name))
    if found.place.size == 1 and (_most_nodes(env) > 1 or (integer(env, "PET_NODE_RANK") or 0) > 0):
        raise DetectionError(
            f"{told}: this is one of several pods that were set up for torchrun, which did not start this "
            f"process, so that each would be a copy of the same run. {_ADVICE}"
        )
    per_pod = env.get("PET_NPROC_PER_NODE", "")
    if found.place.size > 1 and (whole(per_pod) or 1) > 1 and not env.get("LOCAL_RANK"):
        raise DetectionError(
            f"{told}: RANK={env.get('RANK')} is the number of this pod, not of one of its {per_pod} workers, "
            f"which torchrun did not start. {_ADVICE}"
        )


def _most_nodes(env: Environment) -> int:
    """Return how many pods there may be: ``PET_NNODES`` is a number, or the least and the most."""
    most = env.get("PET_NNODES", "").rpartition(":")[2]
    return whole(most) or 1
