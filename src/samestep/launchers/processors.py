"""Gives each rank of a host its share of the processors: the number of threads, and the cores they run on.

torchrun sets ``OMP_NUM_THREADS=1`` if the user has set nothing. The same job would then use another number of
threads than under other launchers, so that value is ignored.

A binding keeps a rank on cores or NUMA nodes. Four ranks share a host with two NUMA nodes of four cores::

    core      01|23 45|67      each rank has separate cores, as many as any other rank
    numa      0123|4567        each rank has the NUMA nodes that its cores are on
    none      01234567         the kernel places each rank

If each rank has a GPU, its cores are on the GPU's node; for that, each rank must see the GPUs of all ranks.

Open MPI binds each of two ranks to one core by default (``mpirun -np 2``; three share a socket). This is
undone: the ranks of a host share its processors, as under any other launcher.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from samestep.base import env
from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.base.machine.description import Core, CpuShare, cores, cpu_share, gpu_nodes
from samestep.base.place import Place
from samestep.base.process_identity import Ancestors, ancestors
from samestep.base.units import whole
from samestep.launchers.registry import BY_NAME, OPEN_MPI, SLURM, TORCHELASTIC

MOST_THREADS = 2**16
"""Maximum threads of one rank."""
_PASSED = "SAMESTEP_THREADS"
"""Variable with the value that `samestep run` set ``OMP_NUM_THREADS`` to, and the reason: otherwise it could
not be distinguished from the user's own value."""

_ASKED = "as asked"  # reason of a number that the user gave with a flag
BOUND = "SAMESTEP_BOUND"
"""Variable with the kind of binding that `samestep.launchers.processors` has applied to this process."""


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
            raise UsageError(f"--threads {asked}: use a number from 1 to {MOST_THREADS:,}.")
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
    is_from_user = threads.reason.startswith("OMP_NUM_THREADS")
    return passed if is_from_user else {"OMP_NUM_THREADS": str(threads.count), **passed}


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


KINDS = ("core", "numa", "none")

_BINDING_FLAGS = (
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_cpu_list",
    "OMPI_MCA_orte_rankfile",
    "OMPI_MCA_rmaps_rank_file_path",
    "PRTE_MCA_hwloc_default_binding_policy",
)
"""Variables in the ranks' environment for ``--bind-to`` and similar flags."""


def checked(kind: str) -> str:
    """Return `kind` if it is a binding.

    Raises:
        UsageError: `kind` is not one of `KINDS`.
    """
    if kind not in KINDS:
        raise UsageError(f"--bind {kind!r} is none of {', '.join(KINDS)}.")
    return kind


def share_of(
    kind: str, here: Sequence[Core], *, local_rank: int, local_size: int, near: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the logical processors of one rank; pure.

    `here` are the cores that the ranks of this host share, node by node, and `near` the NUMA node of the GPU
    of each rank; empty if ranks have none.

    Raises:
        UsageError: there are fewer cores than ranks.
    """
    share = _near(here, local_rank, near[:local_size]) if len(near) >= local_size else []
    if not share:
        each = len(here) // local_size
        if not each:
            raise UsageError(
                f"--bind {kind}: {local_size} workers cannot have a core each, there are {len(here)} for "
                "them. Ask for fewer workers or more processors, or leave --bind out."
            )
        share = list(here[local_rank * each : (local_rank + 1) * each])
    if kind == "numa":
        nodes = {core.node for core in share}
        share = [core for core in here if core.node in nodes]
    return tuple(sorted(cpu for core in share for cpu in core.cpus))


def bind(kind: str, place: Place, environment: Environment, *, shared: bool = True) -> None:
    """Bind this process, and the processes it starts from now on, to its share of the processors.

    With `shared`, the ranks of this host have the same processors; if the launcher has bound each rank
    separately, that binding is kept.

    Raises:
        UsageError: there are fewer cores than ranks, or Slurm shows each rank its own GPU only.
    """
    if kind == "none" or not shared or not hasattr(os, "sched_setaffinity"):
        return
    here, near = cores(os.sched_getaffinity(0)), gpu_nodes(environment.get("CUDA_VISIBLE_DEVICES"))
    each_its_own = len(near) == 1 < place.local_size and environment.get("SLURM_GPUS_PER_TASK")
    if each_its_own and len({core.node for core in here}) > 1:
        raise UsageError(
            f"--bind {kind}: under srun --gpus-per-task each worker sees its own GPU only, not which NUMA "
            "nodes the others take. Add srun's --gpu-bind=none, so that it sees all, or leave --bind out."
        )
    share = share_of(kind, here, local_rank=place.local_rank, local_size=place.local_size, near=near)
    os.sched_setaffinity(0, share)
    env.export({BOUND: kind})


def undo_default_binding(env: Environment, launcher: str, *, ancestors: Ancestors = ancestors) -> bool:
    """Reset this rank's affinity to its launcher's, if Open MPI bound it to one core by default.

    Open MPI passes the user's binding flags on in `env`.

    Ranks of one host then share the processors, as under any other launcher. Returns whether the affinity
    changed.
    """
    if launcher != OPEN_MPI.name or _binding_was_asked_for(env) or not hasattr(os, "sched_setaffinity"):
        return False
    bound = os.sched_getaffinity(0)
    above = next(launcher_processes(launcher, ancestors), None)
    if len(cores(bound)) > 1 or above is None:
        return False
    try:
        of_launcher = os.sched_getaffinity(int(above[0]))
        if not of_launcher > bound:
            return False
        os.sched_setaffinity(0, of_launcher)
    except OSError:  # it has ended, or the kernel does not allow the change
        return False
    return True


def processors_of_rank(local_size: int) -> int:
    """Return this rank's share of the processors: how many of its threads or processes can run at once."""
    variables = {name: text for name, text in env.snapshot().items() if name != "OMP_NUM_THREADS"}
    cpu = cpu_share()
    sharing = guess_sharing(variables, cpu, local_size=local_size)
    return threads_per_rank(variables, cpu, local_size=local_size, sharing=sharing).count


def in_words(kind: str) -> str:
    """Return the text of a binding for the banner."""
    return {
        "core": "each bound to cores of its own",
        "numa": "each bound to a NUMA node",
        "none": "",
    }[kind]


def _near(here: Sequence[Core], local_rank: int, near: Sequence[int]) -> list[Core]:
    """Return the rank's cores on its GPU's node, as many as each rank can have; none if a rank gets none."""
    on = {node: [core for core in here if core.node == node] for node in near}
    each = min(len(on[node]) // near.count(node) for node in near)
    before = near[:local_rank].count(near[local_rank])
    return on[near[local_rank]][before * each : (before + 1) * each]


def _binding_was_asked_for(env: Environment) -> bool:
    mapping = "PE=" in env.get("OMPI_MCA_rmaps_base_mapping_policy", "").upper()
    return mapping or any(env.get(name) for name in _BINDING_FLAGS)
