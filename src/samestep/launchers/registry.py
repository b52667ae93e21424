"""Lists the supported launchers as data: the variables of each, and their meaning.

A launcher is one row. A new one needs a row here, the same row in ``docs/guide/environment.md``, and a
recording in ``tests/support/recordings``. If `UNKNOWN` has its variables, they are removed there. The
prefixes of its variables are in `RANK_VARIABLES`, and in `samestep.launch.source.launcher_variables`, which
reads the meanings of variables from the rows; a test compares both with the rows. ``CONTRIBUTING.md`` has an
example.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from samestep.base.units import whole

Names: TypeAlias = tuple[str, ...]
"""Variables of the same meaning; the first one that is set counts."""


FIELDS = ("rank", "size", "local_rank", "local_size", "node", "nodes")
"""Fields of a row that name the variables of the same field of a `Place`."""
_EXPORT_HINT = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Variables by which one launcher gives a process its place."""

    name: str  # its common name
    proof: tuple[Names, ...]  # it started this process if all variables of a group are set
    rank: Names
    size: Names
    local_rank: Names = ()
    local_size: Names = ()
    node: Names = ()
    nodes: Names = ()
    equal: Names = ()  # have one value unless another launcher has overwritten one of them
    layout: str = ""  # variable that holds the number of ranks on each node, like ``3,1`` or ``2(x2)``
    hosts: str = ""  # variable that holds the node list, like ``node[0-1]``; rank 0 is on the first
    job: Names = ()  # variables that together are unique to this job; empty if the launcher gives it no name
    also_sets: Names = ()  # launchers whose variables this one sets as well; they are not around it
    also_set_by: Names = ()  # launchers that set these variables besides more complete ones
    silent_means_alone: bool = False  # whether ranks without a local rank have a node each (as in pods)
    serves_pmi1: bool = False  # whether it answers ranks by PMI-1, at the descriptor in PMI_FD
    parent_is_job: bool = False  # whether all ranks of a host descend from a process with no other job
    address_hint: str = _EXPORT_HINT  # command that passes the address of rank 0 to the ranks


TORCHELASTIC = Launcher(
    name="torchrun",
    proof=(("TORCHELASTIC_RUN_ID", "RANK"),),
    rank=("RANK",),
    size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE",),
    node=("GROUP_RANK",),
    nodes=("GROUP_WORLD_SIZE",),
    job=("TORCHELASTIC_RUN_ID",),
    also_sets=("environment",),
)

# samestep's launcher sets torchrun's variables, so that programs written for torchrun run under it.
SAMESTEP = replace(
    TORCHELASTIC,
    name="samestep",
    proof=(("SAMESTEP_RUN_ID", "TORCHELASTIC_RUN_ID", "RANK"),),
    equal=("SAMESTEP_RUN_ID", "TORCHELASTIC_RUN_ID"),
    also_sets=("torchrun", "environment"),
)

# OMPI_COMM_WORLD_NODE_RANK is the rank *on* its node, not the number of the node: of no use here.
OPEN_MPI = Launcher(
    name="openmpi",
    proof=(("OMPI_COMM_WORLD_RANK",),),
    rank=("OMPI_COMM_WORLD_RANK",),
    size=("OMPI_COMM_WORLD_SIZE",),
    local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
    local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE",),
    also_sets=("pmix",),
    hosts="SLURM_JOB_NODELIST",
    parent_is_job=True,
    address_hint="mpirun -x MASTER_ADDR=<first host> -x MASTER_PORT=29500 ...",
)

_HYDRA_HINT = "mpiexec -genv MASTER_ADDR <first host> -genv MASTER_PORT 29500 ..."

INTEL_MPI = Launcher(
    name="intelmpi",
    proof=(("PMI_RANK", "I_MPI_MPIRUN"),),
    rank=("PMI_RANK",),
    size=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID",),
    local_size=("MPI_LOCALNRANKS",),
    also_sets=("mpich",),
    also_set_by=("slurm",),
    hosts="SLURM_JOB_NODELIST",
    parent_is_job=True,
    address_hint=_HYDRA_HINT,
)

# Flux gives no number of ranks on a node; it sets the variables of PMI-1 as well, and answers its requests.
FLUX = Launcher(
    name="flux",
    proof=(("FLUX_TASK_RANK",),),
    rank=("FLUX_TASK_RANK",),
    size=("FLUX_JOB_SIZE",),
    local_rank=("FLUX_TASK_LOCAL_ID",),
    nodes=("FLUX_JOB_NNODES",),
    job=("FLUX_JOB_ID",),
    also_sets=("mpich",),
    serves_pmi1=True,
    address_hint="flux run --env=MASTER_ADDR=<first host> --env=MASTER_PORT=29500 ...",
)

# MPICH's Hydra and its relatives; `srun --mpi=pmi2` sets the same variables.
MPICH = Launcher(
    name="mpich",
    proof=(("PMI_RANK",),),
    rank=("PMI_RANK",),
    size=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    also_set_by=("slurm",),
    serves_pmi1=True,
    parent_is_job=True,
    address_hint=_HYDRA_HINT,
)

# PMIx alone (prun, `srun --mpi=pmix`) names the rank but publishes no number of ranks in the environment.
PMIX = Launcher(
    name="pmix",
    proof=(("PMIX_RANK",),),
    rank=("PMIX_RANK",),
    size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE",),
    job=("PMIX_NAMESPACE",),
    also_set_by=("slurm",),
    hosts="SLURM_JOB_NODELIST",
    parent_is_job=True,
    address_hint="prun -x MASTER_ADDR=<first host> -x MASTER_PORT=29500 ...",
)

# The step's variables only: SLURM_NTASKS and its like describe the allocation, and an sbatch script,
# which is one process, has them too.
SLURM = Launcher(
    name="slurm",
    proof=(("SLURM_STEP_ID", "SLURM_PROCID"),),
    rank=("SLURM_PROCID",),
    size=("SLURM_STEP_NUM_TASKS",),
    local_rank=("SLURM_LOCALID",),
    node=("SLURM_NODEID",),
    nodes=("SLURM_STEP_NUM_NODES",),
    layout="SLURM_STEP_TASKS_PER_NODE",
    hosts="SLURM_STEP_NODELIST",
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
)

ENVIRONMENT = Launcher(
    name="environment",
    proof=(("RANK",), ("WORLD_SIZE",)),
    rank=("RANK",),
    size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
    node=("GROUP_RANK", "NODE_RANK"),
    nodes=("GROUP_WORLD_SIZE", "NNODES"),
    silent_means_alone=True,
)

# The pods of an Indexed Job, also of a JobSet: Kubernetes gives each its number, and the manifest must give
# their number. A manifest that sets RANK has ranks other than pods.
KUBERNETES = Launcher(
    name="kubernetes",
    proof=(("JOB_COMPLETION_INDEX", "WORLD_SIZE"),),
    rank=("RANK", "JOB_COMPLETION_INDEX"),
    size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE",),
    node=("JOB_COMPLETION_INDEX",),
    also_sets=("environment",),
    silent_means_alone=True,
)

LAUNCHERS = (SAMESTEP, TORCHELASTIC, OPEN_MPI, INTEL_MPI, FLUX, MPICH, PMIX, SLURM, KUBERNETES, ENVIRONMENT)
"""Innermost first: of several that are found, the first started this process."""
BY_NAME = {launcher.name: launcher for launcher in LAUNCHERS}

UNKNOWN = (
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("PALS_RANKID", ""),
)
"""Variables with rank and number of ranks of launchers that have no row: only their presence is detected.

Some launchers do not give the number of ranks.
"""

RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "NNODES", "MASTER_"),
    *("TORCHELASTIC_", "SAMESTEP_RUN_ID"),
    *("OMPI_COMM_WORLD_", "PMI_", "PMIX_RANK", "MPI_LOCAL", "MV2_COMM_WORLD_"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_TASKS_PER_NODE", "JOB_COMPLETION_INDEX", "FLUX_TASK_", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"),
)
"""Prefixes of variables from which a script or a library infers that it is one of several ranks."""

# Slurm numbers the steps that hold no tasks (batch script, extern, `salloc`'s shell) from here upwards.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def is_task_step(step: str) -> bool:
    """Return whether a Slurm step has tasks; those of a batch script or an interactive shell have none."""
    number = whole(step)
    return number is not None and number < _FIRST_SPECIAL_STEP
