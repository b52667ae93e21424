"""How many threads one rank computes with."""

from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.base.machine import CpuShare
from samestep.base.units import whole
from samestep.world.launchers import SLURM, TORCHELASTIC

MOST_THREADS = 2**16
"""Of one rank."""

_TOLD = "SAMESTEP_THREADS"
"""What `samestep run` set ``OMP_NUM_THREADS`` to, and why: a user's own number looks the same otherwise."""

_ASKED = "as asked"
"""The reason of a number that the user gave with a flag."""

BOUND = "SAMESTEP_BOUND"
"""How `samestep.world.binding` has bound this process, if it has."""


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
    forked: int = 1,
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
        forked: ranks that this task of the launcher starts itself; they divide what the task was given.

    Raises:
        UsageError: the number asked for, or in ``OMP_NUM_THREADS``, is not a number of threads.
    """
    if asked is not None:
        if not 1 <= asked <= MOST_THREADS:
            raise UsageError(f"threads={asked} is not a number of threads. Use 1 .. {MOST_THREADS:,}.")
        return Threads(asked, _ASKED)
    text = env.get("OMP_NUM_THREADS", "").strip()
    if text:
        count = _outer_level(text)
        if (told := told_threads(env)) is not None and told.count == count:
            return told
        if launcher == TORCHELASTIC.name and count == 1 and local_size > 1:
            return Threads(1, "OMP_NUM_THREADS=1, which torchrun sets unless you did")
        return Threads(count, f"OMP_NUM_THREADS={text}")
    count = cpu.cores // sharing
    if cpu.quota is not None:
        count = min(count, int(cpu.quota / local_size))
    if cpu.granted_cores is not None:
        count = min(count, cpu.granted_cores // local_size)
    if launcher == SLURM.name and (of_task := integer(env, "SLURM_CPUS_PER_TASK")):
        count = min(count, of_task * cpu.cores // (len(cpu.allowed) or 1) // forked)
    owner = "one rank" if sharing == 1 else f"{sharing} ranks"
    return Threads(max(1, count), f"{cpu.usable} usable cores for {owner}, limited by {cpu.limited_by}")


def thread_variables(threads: Threads) -> dict[str, str]:
    """Return the variables that tell a program, and samestep in it, how many threads to compute with.

    A user's own ``OMP_NUM_THREADS`` stays as it is.
    """
    told = {_TOLD: f"{threads.count} {threads.reason}"}
    own = threads.reason.startswith("OMP_NUM_THREADS")
    return told if own else {"OMP_NUM_THREADS": str(threads.count), **told}


def told_threads(env: Environment) -> Threads | None:
    """Return what `thread_variables` told this process, if they did."""
    count, _, reason = env.get(_TOLD, "").partition(" ")
    number = whole(count)
    return None if number is None else Threads(number, reason)


def asked_threads(env: Environment) -> Threads | None:
    """Return the same, but only a number that the user gave with a flag."""
    told = told_threads(env)
    return told if told is not None and told.reason == _ASKED else None


def guess_sharing(env: Environment, cpu: CpuShare, *, local_size: int) -> int:
    """Guess how many ranks share this one's processors; ranks that join compare their masks and know.

    Only where this rank has fewer processors than its job has on this host were they divided before, or where
    it was bound to cores of its own.
    """
    if env.get(BOUND) == "core":
        return 1
    of_job = integer(env, "SLURM_CPUS_ON_NODE")
    return 1 if of_job is not None and len(cpu.allowed) < of_job else local_size


def _outer_level(text: str) -> int:
    """Return the first number of a list like ``8,2``: OpenMP counts nested levels one by one."""
    first = text.partition(",")[0].strip()
    count = whole(first)
    if not count or count > MOST_THREADS:
        raise UsageError(
            f"OMP_NUM_THREADS={text!r} is not a number of threads. Set it to 1 .. {MOST_THREADS:,}, or unset "
            "it."
        )
    return count
