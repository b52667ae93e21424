"""Finds the variables of Slurm and MPI that a script reads, and gives them values under `samestep run`.

Such a script takes its rank from a variable of the launcher that it was written for. Under another launcher
the variable is missing, and the script fails, or takes the default: then each process is rank 0 of one.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from samestep.base.env import Environment
from samestep.base.place import Place
from samestep.launch.source.names import Names
from samestep.launchers.registry import BY_NAME

_PREFIXES = ("SLURM", "OMPI_", "PMI_", "PMIX_", "MV2_COMM_WORLD_", "MPI_LOCAL")
_READERS = ("os.environ.get", "os.getenv")
VARIABLES_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def is_of_launcher(name: str) -> bool:
    """Return whether a launcher sets a variable for each of its workers."""
    return name in (*VARIABLES_OF_TORCHRUN, "LOCAL_WORLD_SIZE", "GROUP_RANK") or name.startswith(_PREFIXES)


_LOOPBACK = "127.0.0.1"

_MEANINGS: tuple[tuple[tuple[str, ...], Callable[[Place], object]], ...] = (
    (
        ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"),
        lambda place: place.rank,
    ),
    (
        (
            *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
            *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
        ),
        lambda place: place.size,
    ),
    (
        (
            *("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
            *("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
        ),
        lambda place: place.local_rank,
    ),
    (
        (
            *("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
            *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ),
        lambda place: place.local_size,
    ),
    (("SLURM_NODEID",), lambda place: place.node),
    (("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), lambda place: place.nodes),
)
_ON_ONE_NODE = (
    *("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
    *("SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR"),
)
"""Variables that hold the job's nodes, or the address of the first."""
_VALUES: Mapping[str, Callable[[Place], object]] = MappingProxyType(
    {name: value for names, value in _MEANINGS for name in names}
)


@dataclass(frozen=True, slots=True)
class VariableRead:
    """A line that reads a variable of another launcher.

    >>> str(VariableRead("SLURM_PROCID", Path("train.py"), 12))
    'train.py:12 reads SLURM_PROCID'
    """

    name: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line} reads {self.name}"


def reads_rank(nodes: Iterable[ast.AST], names: Names) -> bool:
    """Return whether code reads torchrun's variables; then it needs none of another launcher's."""
    return any(name in VARIABLES_OF_TORCHRUN for name, _ in _reads(nodes, names))


def reads_of(file: Path, nodes: Iterable[ast.AST], names: Names) -> Iterator[VariableRead]:
    """Yield the lines of a module that read variables of Slurm or MPI."""
    for name, line in _reads(nodes, names):
        if name.startswith(_PREFIXES):
            yield VariableRead(name, file, line)


def _reads(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[str, int]]:
    """Yield each variable that is read by its name, and the line."""
    for node in nodes:
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args and set(names.full(node.func)) & set(_READERS):
            key = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice if "os.environ" in names.full(node.value) else None
        name = key.value if isinstance(key, ast.Constant) else None
        if isinstance(node, (ast.Call, ast.Subscript)) and isinstance(name, str):
            yield name, node.lineno


def values_at(reads: Iterable[VariableRead], place: Place) -> dict[str, str]:
    """Return the variables that a script reads, with the values that their launcher would set."""
    names = {read.name for read in reads}
    values = {name: str(_VALUES[name](place)) for name in names if name in _VALUES}
    if place.nodes == 1:
        values |= {name: _LOOPBACK for name in names if name in _ON_ONE_NODE}
    return values


def values_beside(reads: Iterable[VariableRead], place: Place, environment: Environment) -> dict[str, str]:
    """Return the variables that a launcher's task needs besides those that its launcher has set.

    A launcher around that of the task (Slurm around mpirun) has set its variables for a task of its own, so
    all of them are replaced. All variables of a launcher are set if the script reads one of them, because a
    rank without the number of ranks is no place. Of the task's own launcher only missing variables are set:
    srun sets SLURM_NTASKS_PER_NODE only if it has that flag, and Lightning requires it.
    """
    row = BY_NAME[place.launcher]
    own = {_family(name) for name in (*row.rank, *row.size, *row.local_rank)}
    of_others = [read for read in reads if _family(read.name) not in own]
    wanted = {_family(read.name) for read in of_others}
    wanted |= {_family(name) for name in _VALUES if name in environment} - own
    values = {
        name: str(value(place))
        for name, value in _VALUES.items()
        if _family(name) in wanted or (_family(name) in own and name not in environment)
    }
    return values | values_at(of_others, place)


def _family(name: str) -> str:
    """Return the part of a variable's name that all variables of its launcher share."""
    return name.partition("_")[0]
