"""Holds the defaults for all jobs of a site, from the user's configuration, and merges them with flags."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from samestep.base.errors import UsageError
from samestep.launch.submit.quoting import quoted

RUNTIMES = ("apptainer", "singularity", "pyxis")
"""Container runtimes: two programs, and a plugin of Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The software of a job.

    Args:
        modules: environment modules to load.
        venv: a virtual environment; empty for the interpreter that submits.
        container: the image of the workers, whose Python is used; empty for none.
        container_runtime: one of `RUNTIMES`.
        lines: lines of shell that run before the workers start.
    """

    modules: tuple[str, ...] = ()
    venv: str = ""
    container: str = ""
    container_runtime: str = "apptainer"
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.container_runtime not in RUNTIMES:
            raise UsageError(
                f"container-runtime {self.container_runtime!r} is not one of {', '.join(RUNTIMES)}."
            )
        if self.container and self.venv:
            raise UsageError(
                f"container {self.container} and venv {self.venv} each have a Python; give only one of them."
            )

    def preparation(self) -> list[str]:
        """Return the lines of shell that set up the software."""
        prepared = []
        if self.modules:
            prepared.append(f"module load {' '.join(quoted(self.modules))} || exit")
        if self.venv:
            prepared.append(
                f"source {quoted([_at_home(self.venv).rstrip('/') + '/bin/activate'])[0]} || exit"
            )
        return [*prepared, *self.lines]

    def python(self, here: str) -> list[str]:
        """Return the words that call Python in the job; `here` is the interpreter that submits."""
        if self.container:
            return ["python3"]
        return ["python" if self.venv else quoted([here])[0]]

    def within(self, *, gpus: bool) -> list[str]:
        """Return the words before a worker's command that put it into the container."""
        if not self.container or self.container_runtime == "pyxis":
            return []
        nv = ["--nv"] if gpus else []
        return [self.container_runtime, "exec", *nv, *quoted([_at_home(self.container)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite(Software):
    """The ``[slurm]`` table: requests of all Slurm jobs of a site.

    Args:
        partition: the partition to run in.
        account: the account to charge.
        reservation: reserved nodes, for instance of a course.
        qos: quality of service.
        constraint: features of the nodes.
        time: time limit in the notation of Slurm: minutes, or ``1-12:00:00``.
        mem: memory of each node, such as ``64G``.
        cpus_per_task: cores of each worker.
        directives: further options of sbatch, such as ``--exclusive``.
    """

    partition: str = ""
    account: str = ""
    reservation: str = ""
    qos: str = ""
    constraint: str = ""
    time: str = ""
    mem: str = ""
    cpus_per_task: int | None = None
    directives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super(SlurmSite, self).__post_init__()  # slots: the short form does not know this class
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            raise UsageError(f"--cpus-per-task is {self.cpus_per_task}; give at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiSite(Software):
    """The ``[mpi]`` table: the hosts of a site, and the connection to them.

    Args:
        flavour: ``openmpi`` or ``mpich``; empty for that of ``mpirun``.
        hostfile: a file that lists the hosts.
        interface: the network interface between the hosts.
        ssh: the command that connects to a host.
    """

    flavour: str = ""
    hostfile: str = ""
    interface: str = ""
    ssh: str = "ssh"

    def __post_init__(self) -> None:
        super(MpiSite, self).__post_init__()
        if self.container_runtime == "pyxis" and self.container:
            raise UsageError("container-runtime pyxis needs Slurm; use apptainer or singularity.")
        try:
            words = shlex.split(self.ssh)
        except ValueError as error:
            raise UsageError(f"ssh {self.ssh!r} is not a shell command: {str(error).lower()}.") from None
        if not words:
            raise UsageError(f"ssh {self.ssh!r} has no command; leave it out to use ssh.")

    def python(self, here: str) -> list[str]:
        """Return the words that call Python, by its path, because hosts do not activate an environment."""
        if self.venv:
            return quoted([_at_home(self.venv).rstrip("/") + "/bin/python"])
        return super(MpiSite, self).python(here)


def _at_home(path: str) -> str:
    """Return a path with ``~`` expanded, because a shell does not expand it within quotes."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


Site = TypeVar("Site", SlurmSite, MpiSite)


def with_flags(site: Site, flags: Mapping[str, Any]) -> Site:
    """Return `site`, changed by the flags that were given; None and an empty list mean not given."""
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flags.items()
        if value is not None and value != []
    }
    for flag, other in (("container", "venv"), ("venv", "container")):
        if flag in changes and other not in changes:
            changes[other] = ""  # a flag overrides the file's other kind of Python
    return replace(site, **changes)
