"""Undoes side effects of launchers on a rank's threads and cores that the user did not request.

torchrun sets ``OMP_NUM_THREADS=1`` if the user has set nothing, and Open MPI binds each of two ranks to
one core (``mpirun -np 2``; three share a socket). The same job would then use other numbers of threads under
each launcher. The user's settings are kept: the launcher has them in its own environment, or passes them on.
"""

import os
from collections.abc import Iterator, Mapping

from samestep.base.env import Environment
from samestep.base.machine.ancestors import Ancestors, ancestors
from samestep.base.machine.topology import cores
from samestep.launchers.compute_threads import told_threads
from samestep.launchers.registry import BY_NAME, OPEN_MPI, TORCHELASTIC

_THREADS = "OMP_NUM_THREADS"
_ASKED = (
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_cpu_list",
    "OMPI_MCA_orte_rankfile",
    "OMPI_MCA_rmaps_rank_file_path",
    "PRTE_MCA_hwloc_default_binding_policy",
)
"""Variables in the ranks' environment for ``--bind-to`` and similar flags."""


def without_unasked_threads(
    env: Environment, launcher: str, *, ancestors: Ancestors = ancestors
) -> Environment:
    """Return `env` without a number of threads that only torchrun has set.

    Args:
        env: variables of this rank.
        launcher: name of its launcher.
        ancestors: this process's ancestors; tests replace it.
    """
    if launcher != TORCHELASTIC.name or env.get(_THREADS) != "1" or told_threads(env) is not None:
        return env
    agent = next(launching(launcher, ancestors), None)
    if agent is None or agent[1].get(_THREADS):
        return env
    return {name: value for name, value in env.items() if name != _THREADS}


def unbind(env: Environment, launcher: str, *, ancestors: Ancestors = ancestors) -> bool:
    """Reset this rank's affinity to its launcher's, if Open MPI bound it to one core by default.

    Ranks of one host then share the processors, as under any other launcher. Returns whether the affinity
    changed.

    Args:
        env: variables of this rank; Open MPI passes the user's binding flags on in them.
        launcher: name of its launcher.
        ancestors: this process's ancestors; tests replace it.
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
    except OSError:  # it has ended, or the kernel does not allow the change
        return False
    return True


def _binding_was_asked_for(env: Environment) -> bool:
    mapping = "PE=" in env.get("OMPI_MCA_rmaps_base_mapping_policy", "").upper()
    return mapping or any(env.get(name) for name in _ASKED)


def launching(launcher: str, ancestors: Ancestors = ancestors) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the ancestors of this rank that are not ranks, as far as they are visible, nearest first."""
    ranks = BY_NAME[launcher].rank
    for name, environment in ancestors():
        if not any(variable in environment for variable in ranks):
            yield name, environment
