"""How many threads one rank computes with."""

from dataclasses import dataclass

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine import CpuShare
from samestep.world.launchers import SAMESTEP, TORCHELASTIC


@dataclass(frozen=True, slots=True)
class Threads:
    """A number of threads and where it comes from."""

    count: int
    reason: str


def threads_per_rank(
    env: Environment,
    cpu: CpuShare,
    *,
    local_size: int,
    sharing: int,
    launcher: str = "single",
    asked: int | None = None,
) -> Threads:
    """Return the threads for each of the ranks of this host.

    PyTorch's own default depends on the launcher (MPI's variables make it divide the cores, Slurm's do
    not), so that samestep always sets a number.

    Args:
        env: the environment; a user's ``OMP_NUM_THREADS`` is respected.
        cpu: this process's share of the processors.
        local_size: ranks on this host, which divide the quota of their control group.
        sharing: ranks on this host whose affinity masks overlap, this one included: 1 where the launcher
            bound each rank to processors of its own.
        launcher: who started the ranks.
        asked: a number from the caller, which wins.

    Raises:
        UsageError: the number asked for, or in ``OMP_NUM_THREADS``, is not a number of threads.
    """
    if asked is not None:
        if asked < 1:
            raise UsageError(f"threads={asked} is not a number of threads. Use 1 or more.")
        return Threads(asked, "as asked")
    text = env.get("OMP_NUM_THREADS", "").strip()
    if text:
        count = _outer_level(text)
        if launcher == SAMESTEP.name:
            return Threads(count, "as samestep's launcher has shared them out")
        if launcher == TORCHELASTIC.name and count == 1 and local_size > 1:
            return Threads(1, "OMP_NUM_THREADS=1, which torchrun sets unless you did")
        return Threads(count, f"OMP_NUM_THREADS={text}")
    count = cpu.cores // sharing
    if cpu.quota is not None:
        count = min(count, int(cpu.quota / local_size))
    owner = "one rank" if sharing == 1 else f"{sharing} ranks"
    return Threads(max(1, count), f"{cpu.usable} usable cores for {owner}, limited by {cpu.limited_by}")


def _outer_level(text: str) -> int:
    """Return the first number of a list like ``8,2``: OpenMP counts nested levels one by one."""
    first = text.partition(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        raise UsageError(
            f"OMP_NUM_THREADS={text!r} is not a number of threads. Set it to 1 or more, or unset it."
        )
    return int(first)
