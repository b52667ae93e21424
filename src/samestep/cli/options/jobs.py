"""Declares the options of jobs for Slurm and MPI, and merges them with the defaults of the site."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.base.errors import UsageError
from samestep.cli.options.declare import option, switch
from samestep.launch.submit.mpi_hosts import Host, hosts_in, hosts_of
from samestep.launch.submit.site_defaults import MpiSite, SlurmSite, with_flags

SIZE_PANEL, SITE_PANEL = "Resources of a Slurm job", "Slurm site"
SOFTWARE_PANEL, HOSTS_PANEL = "Software", "Hosts"

Target = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="A script, or a verb: run, train, bench or doctor.")
]
GpusPerNode = Annotated[int, option("G", "GPUs of each node, one for each worker.", SIZE_PANEL)]
JobName = Annotated[
    str | None, option("NAME", "Name of the job. Default: that of the program.", "", "--job-name", "-J")
]
Detach = Annotated[bool, switch("Print the job's number, and do not follow the job.", "", "--detach")]


def _modules(flag: str) -> Any:
    return option("NAME", "Environment module to load; repeatable.", SOFTWARE_PANEL, flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The options of the software of a job; None stands for one that was not given."""

    modules: Annotated[list[str] | None, _modules("--module")] = None
    venv: Annotated[str | None, option("DIR", "Virtual environment to activate.", SOFTWARE_PANEL)] = None
    container: Annotated[str | None, option("IMAGE", "Container image of the workers.", SOFTWARE_PANEL)] = (
        None
    )
    container_runtime: Annotated[
        str | None,
        option("", "Container runtime: apptainer, singularity or, with Slurm, pyxis.", SOFTWARE_PANEL),
    ] = None
    lines: Annotated[
        list[str] | None,
        option(
            "SHELL", "Line of shell to run before the workers start; repeatable.", SOFTWARE_PANEL, "--line"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySoftware(Software):
    """The same options for ``scale``, whose ``--module`` runs a Python module."""

    modules: Annotated[list[str] | None, _modules("--load-module")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The options of Slurm jobs; None stands for one that was not given."""

    cpus_per_task: Annotated[int | None, option("C", "Cores of each worker.", SIZE_PANEL)] = None
    mem: Annotated[str | None, option("SIZE", "Memory of each node, such as 64G.", SIZE_PANEL)] = None
    time: Annotated[
        str | None, option("TIME", "Time limit: minutes, or 1:30:00.", SIZE_PANEL, "--time", "-t")
    ] = None
    partition: Annotated[
        str | None, option("NAME", "Partition to run in.", SITE_PANEL, "--partition", "-p")
    ] = None
    account: Annotated[str | None, option("NAME", "Account to charge.", SITE_PANEL, "--account", "-A")] = None
    reservation: Annotated[str | None, option("NAME", "Reservation to run in.", SITE_PANEL)] = None
    qos: Annotated[str | None, option("NAME", "Quality of service.", SITE_PANEL)] = None
    constraint: Annotated[
        str | None, option("FEATURES", "Features of the nodes.", SITE_PANEL, "--constraint", "-C")
    ] = None
    directives: Annotated[
        list[str] | None,
        option(
            "FLAG",
            "Another option of sbatch, such as --directive=--exclusive; repeatable.",
            SITE_PANEL,
            "--directive",
        ),
    ] = None

    def site(self, software: Software) -> SlurmSite:
        """Return the site of the user's configuration, changed by the flags that were given."""
        defaults = table(config_path(env.snapshot()), "slurm", SlurmSite)
        return with_flags(defaults, asdict(self) | asdict(software))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpi:
    """The options of MPI jobs; None stands for one that was not given."""

    hosts: Annotated[str | None, option("a:2,b:2", "Hosts, and the workers on each.", HOSTS_PANEL)] = None
    hostfile: Annotated[
        str | None, option("FILE", "File with a host per line: a slots=2, or a:2.", HOSTS_PANEL)
    ] = None
    flavour: Annotated[str | None, option("", "openmpi or mpich. Default: that of mpirun.", HOSTS_PANEL)] = (
        None
    )
    interface: Annotated[
        str | None, option("NAME", "Network interface between the hosts, such as eth0.", HOSTS_PANEL)
    ] = None
    ssh: Annotated[
        str | None, option("COMMAND", "Command that connects to a host. Default: ssh.", HOSTS_PANEL)
    ] = None

    def site(self, software: Software) -> MpiSite:
        """Return the site of the user's configuration, changed by the flags that were given."""
        flags = {name: value for name, value in asdict(self).items() if name not in ("hosts", "hostfile")}
        return with_flags(table(config_path(env.snapshot()), "mpi", MpiSite), flags | asdict(software))

    def places(self, site: MpiSite) -> tuple[Host, ...]:
        """Return the hosts of the job.

        Raises:
            UsageError: there are none, or they are given twice or wrong.
        """
        if self.hosts is not None and self.hostfile is not None:
            raise UsageError(
                f"--hosts {self.hosts} and --hostfile {self.hostfile} contradict each other; give only one "
                "of them."
            )
        if self.hosts is not None:
            return hosts_of(self.hosts)
        if file := self.hostfile or site.hostfile:
            return hosts_in(Path(file).expanduser())
        raise UsageError("no hosts are given; give --hosts a:2,b:2, or --hostfile FILE.")
