"""``samestep submit mpi``."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.cli.running import tell
from samestep.cli.submitting import (
    SOFTWARE,
    Arguments,
    Container,
    Detach,
    JobName,
    Lines,
    Modules,
    Target,
    followed,
    kept,
    show_script,
    work_of,
)
from samestep.submit.detached import DetachedFollowed
from samestep.submit.hosts import Host, hosts_in, hosts_of, unfit
from samestep.submit.mpi import FLAVOURS, MpiJob, find, forwarded, script
from samestep.submit.site import MpiSite, with_flags

_WHERE = "Where"


def mpi(
    target: Target,
    arguments: Arguments = None,
    *,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="a:2,b:2", help="Hosts, and workers on each.", rich_help_panel=_WHERE),
    ] = None,
    hostfile: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Lists them: a slots=2, or a:2.", rich_help_panel=_WHERE),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("-n", metavar="N", help="Workers in total; else all.", rich_help_panel=_WHERE),
    ] = None,
    flavour: Annotated[
        str | None, typer.Option(help="openmpi or mpich; else what mpirun is.", rich_help_panel=_WHERE)
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The network between the hosts, as eth0.", rich_help_panel=_WHERE),
    ] = None,
    ssh: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Reaches a host; else ssh.", rich_help_panel=_WHERE)
    ] = None,
    module: Modules = None,
    venv: Annotated[
        str | None, typer.Option(metavar="DIR", help="To run from.", rich_help_panel=SOFTWARE)
    ] = None,
    container: Container = None,
    container_runtime: Annotated[
        str | None, typer.Option(help="apptainer or singularity.", rich_help_panel=SOFTWARE)
    ] = None,
    line: Lines = None,
    job_name: JobName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; start nothing.")] = False,
    detach: Detach = False,
) -> int:
    """Write a job of Open MPI or MPICH, start it over ssh, and follow its log to the end.

    The hosts are asked first whether they can take part. The job and its log are kept in jobs/; it goes on
    when the terminal is closed, or at Ctrl-C. Exits as the job does. Defaults can stand in
    the mpi table of ~/.config/samestep/config.toml; flags go before.
    """
    environment = env.snapshot()
    site = with_flags(
        table(config_path(environment), "mpi", MpiSite),
        {
            "flavour": flavour,
            "interface": interface,
            "ssh": ssh,
            "modules": module,
            "venv": venv,
            "container": container,
            "container_runtime": container_runtime,
            "lines": line,
        },
    )
    work = work_of(target, arguments or [])
    places = _hosts(hosts, hostfile, site)
    kind, program = _mpirun(site, dry_run=dry_run)
    total = workers if workers is not None else work.workers
    job = MpiJob(
        work=work,
        name=job_name or work.name,
        hosts=places,
        workers=sum(host.slots for host in places) if total is None else total,
        flavour=kind,
        mpirun=program,
        site=site,
        folder=Path.cwd(),
        python=sys.executable,
        as_root=os.geteuid() == 0,
        forwarded=forwarded(list(environment)),
    )
    text = script(job)
    if dry_run:
        show_script(text)
        return 0
    _refuse_unfit(job, target)
    file = kept(job.name, text, suffix=".sh")
    started = DetachedFollowed(file, file.with_suffix(".log"))
    tell(
        f"{started.name} is started: {counted(job.workers, 'worker')} on "
        f"{counted(len(places), 'host')}, in {file}, its log in {file.with_suffix('.log')}."
    )
    if detach:
        print(started.number)
        return 0
    return followed(started)


def _hosts(text: str | None, file: str | None, site: MpiSite) -> tuple[Host, ...]:
    if text is not None and file is not None:
        raise UsageError(f"--hosts {text} and --hostfile {file}: give one of the two.")
    if text is not None:
        return hosts_of(text)
    if file or site.hostfile:
        return hosts_in(Path(file or site.hostfile).expanduser())
    raise UsageError("which hosts? Give --hosts a:2,b:2, or --hostfile FILE.")


def _mpirun(site: MpiSite, *, dry_run: bool) -> tuple[str, str]:
    """Return whose mpirun there is, and its name; a job that is only printed need not be for this machine."""
    if dry_run and site.flavour in FLAVOURS:
        return site.flavour, "mpirun"
    if site.modules:  # which bring it
        if not site.flavour:
            raise UsageError("which MPI do the modules bring? Give --flavour openmpi or --flavour mpich.")
        return site.flavour, "mpirun"
    return find(site.flavour, version_of=_version)


def _version(program: str) -> str | None:
    try:
        ended = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
        return None
    return ended.stdout or ended.stderr


def _refuse_unfit(job: MpiJob, target: str) -> None:
    """Ask the other hosts before anything is written.

    Raises:
        UsageError: some cannot take part.
    """
    python = "" if job.site.container or job.site.lines else shlex.split(job.site.python(job.python)[0])[0]
    wrong = unfit(
        job.hosts,
        ssh=job.site.ssh,
        folder=job.folder,
        program=target if Path(target).is_file() else None,
        python=python,
    )
    if wrong:
        raise UsageError(f"{len(wrong)} of {len(job.hosts)} hosts cannot take part: {'; '.join(wrong)}.")
