"""Binds each rank of a host to cores or NUMA nodes.

Example: four ranks share a host with two NUMA nodes of four cores::

    core      01|23 45|67      each rank has separate cores, as many as any other rank
    numa      0123|4567        each rank has the NUMA nodes that its cores are on
    none      01234567         the kernel places each rank

If each rank has a GPU, its cores are on the GPU's node; for that, each rank must see the GPUs of all ranks.

Open MPI binds each of two ranks to one core by default (``mpirun -np 2``; three share a socket). This is
undone: the ranks of a host share its processors, as under any other launcher.
"""

import os
from collections.abc import Sequence

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.description import Core, cores, cpu_share, gpu_nodes
from samestep.base.place import Place
from samestep.base.process_identity import Ancestors, ancestors
from samestep.launchers.compute_threads import BOUND, guess_sharing, launcher_processes, threads_per_rank
from samestep.launchers.registry import OPEN_MPI

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
    own = _near(here, local_rank, near[:local_size]) if len(near) >= local_size else []
    if not own:
        each = len(here) // local_size
        if not each:
            raise UsageError(
                f"--bind {kind}: {local_size} workers cannot have a core each, there are {len(here)} for "
                "them. Ask for fewer workers or more processors, or leave --bind out."
            )
        own = list(here[local_rank * each : (local_rank + 1) * each])
    if kind == "numa":
        nodes = {core.node for core in own}
        own = [core for core in here if core.node in nodes]
    return tuple(sorted(cpu for core in own for cpu in core.cpus))


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
    mine = share_of(kind, here, local_rank=place.local_rank, local_size=place.local_size, near=near)
    os.sched_setaffinity(0, mine)
    env.export({BOUND: kind})


def undo_default_binding(env: Environment, launcher: str, *, ancestors: Ancestors = ancestors) -> bool:
    """Reset this rank's affinity to its launcher's, if Open MPI bound it to one core by default.

    Open MPI passes the user's binding flags on in `env`.

    Ranks of one host then share the processors, as under any other launcher. Returns whether the affinity
    changed.
    """
    if launcher != OPEN_MPI.name or _binding_was_asked_for(env) or not hasattr(os, "sched_setaffinity"):
        return False
    mine = os.sched_getaffinity(0)
    above = next(launcher_processes(launcher, ancestors), None)
    if len(cores(mine)) > 1 or above is None:
        return False
    try:
        theirs = os.sched_getaffinity(int(above[0]))
        if not theirs > mine:
            return False
        os.sched_setaffinity(0, theirs)
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
