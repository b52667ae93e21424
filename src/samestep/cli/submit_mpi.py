"""Implements ``samestep submit mpi``, which starts a job with Open MPI or MPICH."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.cli import options
from samestep.cli.options import option
from samestep.cli.submit_common import (
    SOFTWARE,
    Arguments,
    Container,
    Detach,
    JobName,
    Lines,
    Modules,
    Target,
    Venv,
    follow_job,
    print_script,
    store_script,
    work_of,
)
from samestep.launch.submit.detached import DetachedJob
from samestep.launch.submit.mpi import FLAVOURS, MpiJob, find, forwarded, script
from samestep.launch.submit.mpi_hosts import Host, hosts_in, hosts_of, unusable
from samestep.launch.submit.site_defaults import MpiSite, with_flags

_HOSTS = "Hosts"


def mpi(
    target: Target,
    arguments: Arguments = None,
    *,
    hosts: Annotated[str | None, option("a:2,b:2", "Hosts, and the workers on each.", _HOSTS)] = None,
    hostfile: Annotated[
        str | None, option("FILE", "File with a host per line: a slots=2, or a:2.", _HOSTS)
    ] = None,
    workers: options.Workers = None,
    flavour: Annotated[str | None, option("", "openmpi or mpich. Default: that of mpirun.", _HOSTS)] = None,
    interface: Annotated[
        str | None, option("NAME", "Network interface between the hosts, such as eth0.", _HOSTS)
    ] = None,
    ssh: Annotated[
        str | None, option("COMMAND", "Command that connects to a host. Default: ssh.", _HOSTS)
    ] = None,
    module: Modules = None,
    venv: Venv = None,
    container: Container = None,
    container_runtime: Annotated[
        str | None, option("", "Container runtime: apptainer or singularity.", SOFTWARE)
    ] = None,
    line: Lines = None,
    job_name: JobName = None,
    dry_run: options.DryRun = False,
    detach: Detach = False,
) -> int:
    """Write a job for Open MPI or MPICH, start it over ssh, and follow its log to the end.

    The hosts are checked first. Without -n every slot of a host is a worker. The job and its log are stored
    in jobs/. The job continues when the terminal is closed, and after Ctrl-C. The exit code is that of the
    job. Defaults are read from the mpi table of ~/.config/samestep/config.toml; flags override them.
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
        print_script(text)
        return 0
    _check_hosts(job, target)
    file = store_script(job.name, text, suffix=".sh")
    started = DetachedJob(file, file.with_suffix(".log"))
    log(
        f"{started.name} is started: {counted(job.workers, 'worker')} on {counted(len(places), 'host')}. "
        f"Its script is {file}, its log {file.with_suffix('.log')}."
    )
    if detach:
        print(started.number)
        return 0
    return follow_job(started)


def _hosts(text: str | None, file: str | None, site: MpiSite) -> tuple[Host, ...]:
    if text is not None and file is not None:
        raise UsageError(
            f"--hosts {text} and --hostfile {file} contradict each other; give only one of them."
        )
    if text is not None:
        return hosts_of(text)
    if file or site.hostfile:
        return hosts_in(Path(file or site.hostfile).expanduser())
    raise UsageError("no hosts are given; give --hosts a:2,b:2, or --hostfile FILE.")


def _mpirun(site: MpiSite, *, dry_run: bool) -> tuple[str, str]:
    """Return the flavor and the name of mpirun; a job that is only printed may be for another machine."""
    if dry_run and site.flavour in FLAVOURS:
        return site.flavour, "mpirun"
    if site.modules:  # one of them provides mpirun, so it cannot be asked for its version here
        if not site.flavour:
            raise UsageError("the MPI of the modules is unknown; give --flavour openmpi or --flavour mpich.")
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


def _check_hosts(job: MpiJob, target: str) -> None:
    """Check the other hosts before anything is written.

    Raises:
        UsageError: some of them cannot run the job.
    """
    python = "" if job.site.container or job.site.lines else shlex.split(job.site.python(job.python)[0])[0]
    wrong = unusable(
        job.hosts,
        ssh=job.site.ssh,
        folder=job.folder,
        program=target if Path(target).is_file() else None,
        python=python,
    )
    if wrong:
        raise UsageError(f"{len(wrong)} of {len(job.hosts)} hosts cannot run the job: {'; '.join(wrong)}.")
