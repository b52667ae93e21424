"""Implements ``samestep submit slurm``, which submits a Slurm job."""

import sys
from typing import Annotated

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.signals import held
from samestep.base.units import counted
from samestep.cli import options
from samestep.cli.options import option, switch
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
    slurm_site,
)
from samestep.cli.submit_common import (
    FOLDER,
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
    refuse_without_sbatch,
    store_script,
    work_of,
)
from samestep.launch.submit.quoting import slug
from samestep.launch.submit.resources import LAUNCHES, Launch
from samestep.launch.submit.slurm import SlurmJob, per_node, script
from samestep.launch.submit.slurm_commands import FollowedSlurmJob, submit

WARNING_S = 120
"""Seconds before the time limit; Slurm checks limits every half minute or so."""


def slurm(
    target: Target,
    arguments: Arguments = None,
    *,
    nodes: Annotated[int, option("N", "Number of nodes.", SIZE)] = 1,
    gpus_per_node: GpusPerNode = 0,
    workers: options.Workers = None,
    nproc_per_node: Annotated[
        int | None,
        option("K", "Workers on each node.", options.WORKERS_PANEL, "--nproc-per-node", "--ntasks-per-node"),
    ] = None,
    cpus_per_task: CpusPerTask = None,
    mem: Memory = None,
    time: Time = None,
    requeue: Annotated[
        bool, switch("Before the time limit, write a checkpoint and requeue the job.", SIZE, "--requeue")
    ] = False,
    warning: Annotated[
        int | None, option("S", f"With --requeue: seconds before the time limit. Default: {WARNING_S}.", SIZE)
    ] = None,
    launch: Annotated[
        str,
        option(
            "",
            "tasks: Slurm starts each worker; node: Slurm starts samestep once on each node.",
            options.WORKERS_PANEL,
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
        str | None, option("FILE", "The log; %j is the number of the job.", "", "--output", "-o")
    ] = None,
    dry_run: options.DryRun = False,
    detach: Detach = False,
) -> int:
    """Write a Slurm job, submit it, and follow its state and its log to the end.

    The job is stored in jobs/, so that it can be read, changed and submitted again. Ctrl-C ends the
    following, not the job. The exit code is that of the job. Defaults for all jobs of a site are read from
    the slurm table of ~/.config/samestep/config.toml; flags override them.
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
            in_command=work.workers,
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
        print_script(text)
        return 0
    refuse_without_sbatch()
    file = store_script(name, text, suffix=".sbatch")
    with held() as signals:  # a Ctrl-C waits until the number of an accepted job is printed
        number = submit(file)
        where = f"{counted(job.workers, 'worker')} on {counted(nodes, 'node')}"
        log(f"job {number} is submitted: {where}. Its script is {file}.")
    signals.heed()
    if detach:
        print(number)
        return 0
    return follow_job(FollowedSlurmJob(number))


def _launch(text: str) -> Launch:
    for known in LAUNCHES:
        if text == known:
            return known
    raise UsageError(f"--launch {text!r} is not one of {', '.join(LAUNCHES)}.")


def _warning(seconds: int | None, *, requeue: bool) -> int | None:
    if seconds is not None and not requeue:
        raise UsageError(f"--warning {seconds} has an effect only with --requeue; give that too.")
    return (WARNING_S if seconds is None else seconds) if requeue else None
