"""``samestep submit slurm``."""

import sys
from typing import Annotated

import typer

from samestep.base.errors import UsageError
from samestep.base.signals import held
from samestep.base.units import counted
from samestep.cli.running import tell
from samestep.cli.slurm_flags import (
    SIZE,
    Account,
    Constraint,
    CpusPerTask,
    Directives,
    GpusPerNode,
    Memory,
    Partition,
    Qos,
    Reservation,
    Runtime,
    Time,
    Venv,
    slurm_site,
)
from samestep.cli.submitting import (
    FOLDER,
    Arguments,
    Container,
    Detach,
    JobName,
    Lines,
    Modules,
    Target,
    followed,
    kept,
    refuse_without_sbatch,
    show_script,
    work_of,
)
from samestep.submit.cluster import SlurmFollowed, submit
from samestep.submit.request import LAUNCHES, Launch
from samestep.submit.slurm import SlurmJob, per_node, script
from samestep.submit.words import slug

WARNING_S = 120
"""Before the end of a job's time; Slurm looks at limits every half minute or so."""


def slurm(
    target: Target,
    arguments: Arguments = None,
    *,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many.", rich_help_panel=SIZE)] = 1,
    gpus_per_node: GpusPerNode = 0,
    workers: Annotated[
        int | None, typer.Option("-n", metavar="N", help="Workers in total.", rich_help_panel=SIZE)
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node",
            "--ntasks-per-node",
            metavar="K",
            help="Workers on each node.",
            rich_help_panel=SIZE,
        ),
    ] = None,
    cpus_per_task: CpusPerTask = None,
    mem: Memory = None,
    time: Time = None,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue",
            help="Near the limit, have the workers write a checkpoint and queue the job again.",
            rich_help_panel=SIZE,
        ),
    ] = False,
    warning: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            help=f"With --requeue: so long before the limit; else {WARNING_S} s.",
            rich_help_panel=SIZE,
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            help="tasks: Slurm starts each worker; node: it starts samestep once on each node.",
            rich_help_panel=SIZE,
        ),
    ] = "tasks",
    partition: Partition = None,
    account: Account = None,
    reservation: Reservation = None,
    qos: Qos = None,
    constraint: Constraint = None,
    directive: Directives = None,
    module: Modules = None,
    venv: Venv = None,
    container: Container = None,
    container_runtime: Runtime = None,
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
    site = slurm_site(
        partition=partition,
        account=account,
        reservation=reservation,
        qos=qos,
        constraint=constraint,
        time=time,
        mem=mem,
        cpus_per_task=cpus_per_task,
        directives=directive,
        modules=module,
        venv=venv,
        container=container,
        container_runtime=container_runtime,
        lines=line,
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
    refuse_without_sbatch()
    file = kept(name, text, suffix=".sbatch")
    with held() as signals:  # a job that Slurm takes has a number that is told
        number = submit(file)
        where = f"{counted(job.workers, 'worker')} on {counted(nodes, 'node')}"
        tell(f"job {number} is submitted: {where}, in {file}.")
    signals.heed()
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
