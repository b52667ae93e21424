"""What launchers do to a rank's threads and processors without having been asked.

torchrun sets ``OMP_NUM_THREADS=1`` where the user has set nothing, and Open MPI binds each of two ranks to
one core (``mpirun -np 2``; three share a socket). The same job would then compute with other threads under
each launcher. What the user has said is left alone: the launcher has it in its own environment, or tells it.
"""

import os
from collections.abc import Iterator, Mapping

from samestep.base.env import Environment
from samestep.base.topology import cores
from samestep.world.compute_threads import told_threads
from samestep.world.launchers import BY_NAME, OPEN_MPI, TORCHELASTIC
from samestep.world.rendezvous import Ancestors, ancestors

_THREADS = "OMP_NUM_THREADS"
_ASKED = (
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_cpu_list",
    "OMPI_MCA_orte_rankfile",
    "OMPI_MCA_rmaps_rank_file_path",
    "PRTE_MCA_hwloc_default_binding_policy",
)
"""What ``--bind-to`` and its like become in the ranks' environment."""


def without_unasked_threads(
    env: Environment, launcher: str, *, ancestors: Ancestors = ancestors
) -> Environment:
    """Return `env` without a number of threads that only torchrun has set.

    Args:
        env: of this rank.
        launcher: who started it.
        ancestors: this process's ancestors; tests pass their own.
    """
    if launcher != TORCHELASTIC.name or env.get(_THREADS) != "1" or told_threads(env) is not None:
        return env
    agent = next(launching(launcher, ancestors), None)
    if agent is None or agent[1].get(_THREADS):
        return env
    return {name: value for name, value in env.items() if name != _THREADS}


def unbind(env: Environment, launcher: str, *, ancestors: Ancestors = ancestors) -> bool:
    """Give this rank back the processors that its launcher has, where Open MPI bound it to one core unasked.

    Ranks of one host then share them, as under any other launcher. Returns whether anything was done.

    Args:
        env: of this rank; Open MPI hands on to it what the user has said about binding.
        launcher: who started it.
        ancestors: this process's ancestors; tests pass their own.
    """
    if launcher != OPEN_MPI.name or _binding_was_asked_for(env) or not hasattr(os, "sched_setaffinity"):
        return False
    mine = os.sched_getaffinity(0)
    above = next(launching(launcher, ancestors), None)
    if len(cores(mine)) > 1 or above is None:
        return False
    try:
        theirs = os.sched_getaffinity(int(above[0]))
        if not theirs > mine:
            return False
        os.sched_setaffinity(0, theirs)
    except OSError:  # it has ended, or the kernel keeps this process where it is
        return False
    return True


def _binding_was_asked_for(env: Environment) -> bool:
    mapping = "PE=" in env.get("OMPI_MCA_rmaps_base_mapping_policy", "").upper()
    return mapping or any(env.get(name) for name in _ASKED)


def launching(launcher: str, ancestors: Ancestors = ancestors) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the processes that started this rank, as far up as they can be seen; the launcher's own first."""
    ranks = BY_NAME[launcher].rank
    for name, environment in ancestors():
        if not any(variable in environment for variable in ranks):
            yield name, environment
