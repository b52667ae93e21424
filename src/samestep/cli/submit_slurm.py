"""``samestep submit slurm``."""

import shutil
import sys
from typing import Annotated

import typer

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.base.errors import UsageError
from samestep.cli.running import tell
from samestep.cli.submitting import (
    FOLDER,
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
from samestep.submit.cluster import SlurmFollowed, submit
from samestep.submit.site import SlurmSite, with_flags
from samestep.submit.slurm import LAUNCHES, Launch, SlurmJob, per_node, script
from samestep.submit.words import counted, slug

WARNING_S = 120
"""Before the end of a job's time; Slurm looks at limits every half minute or so."""

_SIZE, _SITE = "Size", "What the site wants to know"


def slurm(
    target: Target,
    arguments: Arguments = None,
    *,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many.", rich_help_panel=_SIZE)] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(metavar="G", help="GPUs of each; one worker for each.", rich_help_panel=_SIZE)
    ] = 0,
    workers: Annotated[
        int | None, typer.Option("-n", metavar="N", help="Workers in total.", rich_help_panel=_SIZE)
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node",
            "--ntasks-per-node",
            metavar="K",
            help="Workers on each node.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option(metavar="C", help="Processors of each worker.", rich_help_panel=_SIZE)
    ] = None,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of each node, as 64G.", rich_help_panel=_SIZE)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", "-t", metavar="TIME", help="Limit: minutes, or 1:30:00.", rich_help_panel=_SIZE
        ),
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue",
            help="Near the limit, have the workers write a checkpoint and queue the job again.",
            rich_help_panel=_SIZE,
        ),
    ] = False,
    warning: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            help=f"With --requeue: so long before the limit; else {WARNING_S} s.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            help="tasks: Slurm starts each worker; node: it starts samestep once on each node.",
            rich_help_panel=_SIZE,
        ),
    ] = "tasks",
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", metavar="NAME", help="Where to run.", rich_help_panel=_SITE),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option("--account", "-A", metavar="NAME", help="Whom to charge.", rich_help_panel=_SITE),
    ] = None,
    reservation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Nodes that are set aside.", rich_help_panel=_SITE)
    ] = None,
    qos: Annotated[
        str | None, typer.Option(metavar="NAME", help="Quality of service.", rich_help_panel=_SITE)
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option("--constraint", "-C", metavar="FEATURES", help="Of the nodes.", rich_help_panel=_SITE),
    ] = None,
    directive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAG", help="Any other of sbatch's: --directive=--exclusive.", rich_help_panel=_SITE
        ),
    ] = None,
    module: Modules = None,
    venv: Annotated[
        str | None, typer.Option(metavar="DIR", help="To activate.", rich_help_panel=SOFTWARE)
    ] = None,
    container: Container = None,
    container_runtime: Annotated[
        str | None, typer.Option(help="apptainer, singularity or pyxis.", rich_help_panel=SOFTWARE)
    ] = None,
    line: Lines = None,
    job_name: JobName = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The log; %j is the job's number.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; submit nothing.")] = False,
    detach: Detach = False,
) -> int:
    """Write a job of Slurm, submit it, and follow its state and its log to the end.

    The job is kept in jobs/, so that it can be read, changed and submitted again. Ctrl-C ends the following,
    not the job. Exits as the job does. What all jobs of a site have in common can stand in
    the slurm table of ~/.config/samestep/config.toml; flags go before.
    """
    site = with_flags(
        table(config_path(env.snapshot()), "slurm", SlurmSite),
        {
            "partition": partition,
            "account": account,
            "reservation": reservation,
            "qos": qos,
            "constraint": constraint,
            "time": time,
            "mem": mem,
            "cpus_per_task": cpus_per_task,
            "directives": directive,
            "modules": module,
            "venv": venv,
            "container": container,
            "container_runtime": container_runtime,
            "lines": line,
        },
    )
    work = work_of(target, arguments or [])
    name = job_name or work.name
    job = SlurmJob(
        work=work,
        name=name,
        nodes=nodes,
        per_node=per_node(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            workers=workers,
            nproc_per_node=nproc_per_node,
            said=work.workers,
        ),
        gpus_per_node=gpus_per_node,
        site=site,
        launch=_launch(launch),
        warning_s=_warning(warning, requeue=requeue),
        output=output or str(FOLDER / f"{slug(name)}-%j.log"),
        python=sys.executable,
    )
    text = script(job)
    if dry_run:
        show_script(text)
        return 0
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine. Submit from a login node of the cluster, or see the job "
            "with --dry-run."
        )
    file = kept(name, text, suffix=".sbatch")
    number = submit(file)
    tell(
        f"job {number} is submitted: {counted(job.workers, 'worker')} on {counted(nodes, 'node')}, in {file}."
    )
    if detach:
        print(number)
        return 0
    return followed(SlurmFollowed(number))


def _launch(text: str) -> Launch:
    for known in LAUNCHES:
        if text == known:
            return known
    raise UsageError(f"--launch {text!r} is neither of {' and '.join(LAUNCHES)}.")


def _warning(seconds: int | None, *, requeue: bool) -> int | None:
    if seconds is not None and not requeue:
        raise UsageError(
            f"--warning {seconds} says when a job is told to be queued again: give --requeue too."
        )
    return (WARNING_S if seconds is None else seconds) if requeue else None
