"""What a site's jobs have in common: the tables of the user's configuration, under any flag."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from samestep.base.errors import UsageError
from samestep.submit.words import quoted

RUNTIMES = ("apptainer", "singularity", "pyxis")
"""What runs containers: two programs, and a plugin of Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Where a job finds its programs.

    Args:
        modules: environment modules to load.
        venv: a virtual environment; by default the interpreter that submits is used.
        container: an image to run the workers in; its own Python is used.
        container_runtime: what runs it.
        lines: of shell, before the workers start.
    """

    modules: tuple[str, ...] = ()
    venv: str = ""
    container: str = ""
    container_runtime: str = "apptainer"
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.container_runtime not in RUNTIMES:
            raise UsageError(
                f"container-runtime {self.container_runtime!r} is none of {', '.join(RUNTIMES)}."
            )
        if self.container and self.venv:
            raise UsageError(
                f"container {self.container} has its own Python, and venv {self.venv} is another: give one."
            )

    def preparation(self) -> list[str]:
        """Return the lines of shell that make the programs available."""
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
    """``[slurm]``: what jobs ask this site's Slurm for.

    Args:
        partition: where to run.
        account: whom to charge.
        reservation: nodes set aside, as for a course.
        qos: quality of service.
        constraint: features of the nodes.
        time: limit, as Slurm reads it: minutes, or ``1-12:00:00``.
        mem: memory of each node, such as ``64G``.
        cpus_per_task: processors of each worker.
        directives: further flags of sbatch, such as ``--exclusive``.
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
            raise UsageError(f"--cpus-per-task {self.cpus_per_task}: each worker needs a processor.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiSite(Software):
    """``[mpi]``: how MPI reaches this site's hosts.

    Args:
        flavour: ``openmpi`` or ``mpich``; by default what ``mpirun`` says it is.
        hostfile: lists the hosts.
        interface: the network interface between the hosts.
        ssh: the command that reaches a host.
    """

    flavour: str = ""
    hostfile: str = ""
    interface: str = ""
    ssh: str = "ssh"

    def __post_init__(self) -> None:
        super(MpiSite, self).__post_init__()
        if self.container_runtime == "pyxis" and self.container:
            raise UsageError("container-runtime pyxis is a plugin of Slurm: use apptainer or singularity.")
        try:
            words = shlex.split(self.ssh)
        except ValueError as error:
            raise UsageError(f"ssh {self.ssh!r} is no command of a shell: {str(error).lower()}.") from None
        if not words:
            raise UsageError(f"ssh {self.ssh!r} names no command. Leave it out for ssh itself.")

    def python(self, here: str) -> list[str]:
        """Return the words that call Python; on other hosts no virtual environment is active."""
        if self.venv:
            return quoted([_at_home(self.venv).rstrip("/") + "/bin/python"])
        return super(MpiSite, self).python(here)


def _at_home(path: str) -> str:
    """Return a path with its ``~`` as what it stands for; quotes would keep the shell from seeing it."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


Site = TypeVar("Site", SlurmSite, MpiSite)


def with_flags(site: Site, flags: Mapping[str, Any]) -> Site:
    """Return `site` as the flags that were given change it; None and empty lists were not."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    told: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    if "container" in told and "venv" not in told:
        told["venv"] = ""  # the flag beats the file
    if "venv" in told and "container" not in told:
        told["container"] = ""
    return replace(site, **told)
