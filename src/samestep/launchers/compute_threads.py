"""Determines the number of threads one rank computes with.

torchrun sets ``OMP_NUM_THREADS=1`` if the user has set nothing. The same job would then use another number of
threads than under other launchers, so that value is ignored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare
from samestep.base.process_identity import Ancestors, ancestors
from samestep.base.units import whole
from samestep.launchers.registry import BY_NAME, SLURM, TORCHELASTIC

MOST_THREADS = 2**16
"""Maximum threads of one rank."""
_PASSED = "SAMESTEP_THREADS"
"""Variable with the value that `samestep run` set ``OMP_NUM_THREADS`` to, and the reason: otherwise it could
not be distinguished from the user's own value."""

_ASKED = "as asked"  # reason of a number that the user gave with a flag
BOUND = "SAMESTEP_BOUND"
"""Variable with the kind of binding that `samestep.launchers.binding` has applied to this process."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Number of threads and its origin."""

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

    PyTorch's own default depends on the launcher (with MPI's variables it divides the cores, with Slurm's it
    does not), so that samestep always sets a number.

    Args:
        env: the environment; a user's ``OMP_NUM_THREADS`` is respected.
        cpu: this process's share of the processors.
        local_size: ranks on this host, which divide the quota of their control group.
        sharing: ranks on this host whose affinity masks overlap, this one included: 1 if the launcher
            bound each rank to separate processors.
        launcher: name of the launcher that started the ranks.
        asked: a number from the caller, which takes precedence.
        forked: ranks that this task of the launcher starts itself; they divide the processors of the task.

    Raises:
        UsageError: `asked` or ``OMP_NUM_THREADS`` is not a number of threads.
    """
    if asked is not None:
        if not 1 <= asked <= MOST_THREADS:
            raise UsageError(f"threads={asked} is not a number of threads. Use 1 .. {MOST_THREADS:,}.")
        return Threads(asked, _ASKED)
    text = env.get("OMP_NUM_THREADS", "").strip()
    if text:
        count = _outer_level(text)
        if (passed := passed_threads(env)) is not None and passed.count == count:
            return passed
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


def without_default_threads(
    env: Environment, launcher: str, *, ancestors: Ancestors = ancestors
) -> Environment:
    """Return `env` without a number of threads that only torchrun has set."""
    if launcher != TORCHELASTIC.name or env.get("OMP_NUM_THREADS") != "1" or passed_threads(env) is not None:
        return env
    agent = next(launcher_processes(launcher, ancestors), None)
    if agent is None or agent[1].get("OMP_NUM_THREADS"):
        return env
    return {name: value for name, value in env.items() if name != "OMP_NUM_THREADS"}


def thread_variables(threads: Threads) -> dict[str, str]:
    """Return the variables that set a program's number of threads, and pass it to samestep in that program.

    A user's own ``OMP_NUM_THREADS`` stays as it is.
    """
    passed = {_PASSED: f"{threads.count} {threads.reason}"}
    own = threads.reason.startswith("OMP_NUM_THREADS")
    return passed if own else {"OMP_NUM_THREADS": str(threads.count), **passed}


def passed_threads(env: Environment) -> Threads | None:
    """Return the number that `thread_variables` passed to this process; None if they are not set."""
    count, _, reason = env.get(_PASSED, "").partition(" ")
    number = whole(count)
    return None if number is None else Threads(number, reason)


def asked_threads(env: Environment) -> Threads | None:
    """Return the same, but only a number that the user gave with a flag."""
    passed = passed_threads(env)
    return passed if passed is not None and passed.reason == _ASKED else None


def guess_sharing(env: Environment, cpu: CpuShare, *, local_size: int) -> int:
    """Estimate how many ranks share this rank's processors; ranks that join compare their masks instead.

    The processors are already divided only if this rank has fewer of them than its job has on this host, or
    if it was bound to separate cores.
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


def launcher_processes(
    launcher: str, ancestors: Ancestors = ancestors
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the ancestors of this rank that are not ranks, as far as they are visible, nearest first."""
    ranks = BY_NAME[launcher].rank
    for name, environment in ancestors():
        if not any(variable in environment for variable in ranks):
            yield name, environment
