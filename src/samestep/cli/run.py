"""Implements ``samestep run``, which runs a program on N workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base import env
from samestep.base.console import log
from samestep.cli import job_flags, options
from samestep.cli.job_flags import Rendezvous
from samestep.cli.options import option, switch
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.serial_flags import with_options
from samestep.launch.job import Job
from samestep.launch.local.hosting import leave
from samestep.run.decision import decide, with_checks
from samestep.run.decision_text import banner, dry_run_lines
from samestep.run.execution import execute
from samestep.run.hash_seed import fix_hash_seed
from samestep.run.scratch import with_scratch
from samestep.run.slurm_allocation import rerun_in_allocation
from samestep.run.worker_binding import with_binding

SETTINGS: Mapping[str, Any] = {
    # Everything after the program belongs to the program, even if it resembles an option of samestep.
    "allow_interspersed_args": False,
    # torchrun takes its flags with dashes and with underscores.
    "token_normalize_func": lambda name: name.replace("_", "-"),
}

_NODES, _OUTPUT = "Several nodes (torchrun's flags)", "Output"


@with_secret_file
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help="A script; a module with -m, an executable with --no-python."),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the program.")
    ] = None,
    *,
    workers: options.Workers = None,
    nproc_per_node: Annotated[
        str | None, option("K", "Workers on each node: a number, gpu, cpu or auto.", options.WORKERS_PANEL)
    ] = None,
    threads: options.Threads = None,
    bind: options.Bind = "none",
    max_restarts: options.MaxRestarts = 0,
    hang_timeout: options.HangTimeout = 60.0,
    count: Annotated[
        bool,
        switch(
            "Print the number of steps and samples at the end, and where the time went.",
            options.CLOCK_PANEL,
            "--count",
        ),
    ] = False,
    clock: options.Clock = None,
    clock_steps: options.ClockSteps = None,
    clock_warm_up: options.ClockWarmUp = 5,
    sanitize: Annotated[
        bool,
        switch(
            "Compare the workers in every step: weights, steps, samples, random numbers, NaN. Slower.",
            options.WORKERS_PANEL,
            "--sanitize",
        ),
    ] = False,
    mode: options.Mode = "auto",
    module: options.Module = False,
    no_python: Annotated[
        bool, switch("The program is an executable of any kind.", "", "--no-python")
    ] = False,
    dry_run: options.DryRun = False,
    explain: Annotated[
        bool,
        switch(
            "Run the first steps, print what is split, and discard what the script writes.",
            options.SERIAL_PANEL,
            "--explain",
        ),
    ] = False,
    batch_norm: options.BatchNorm = "global",
    split: options.Split = "call",
    load: options.Load = "auto",
    random: options.Random = "global",
    device: options.Device = "auto",
    algorithm: options.Algorithm = None,
    check_every: Annotated[
        int | None,
        option(
            "K",
            "Compute every K-th split call unsplit too, and compare; 0 disables the check. "
            "Default: ever less often, in about 1 % of the time.",
            options.SERIAL_PANEL,
        ),
    ] = None,
    all_output: Annotated[
        bool,
        switch(
            "Print the output of all workers of a serial script, each line prefixed with the rank.",
            _OUTPUT,
            "--all-output",
        ),
    ] = False,
    scratch: Annotated[
        Path | None,
        option("DIR", "Redirect the files that Python, torch and numpy write to this folder.", _OUTPUT),
    ] = None,
    log_dir: Annotated[Path | None, option("DIR", "Folder for each worker's output.", _OUTPUT)] = None,
    redirects: Annotated[
        str,
        option(
            "",
            "Streams that go to files only: 1 stdout, 2 stderr, 3 both, or RANK:S,..",
            _OUTPUT,
            "-r",
            "--redirects",
        ),
    ] = "0",
    tee: Annotated[
        str,
        option(
            "",
            "Streams that go to files and, prefixed with the rank, to the console.",
            _OUTPUT,
            "-t",
            "--tee",
        ),
    ] = "0",
    nnodes: Annotated[str, option("", "Number of nodes.", _NODES)] = "1",
    node_rank: Annotated[int | None, option("", "Rank of this node, from 0.", _NODES)] = None,
    master_addr: Annotated[str, option("", "A host name or address of node 0.", _NODES)] = "",
    master_port: Annotated[int | None, option("", "A free port on node 0.", _NODES)] = None,
    rdzv_backend: Annotated[str, option("", "static (the flags above) or c10d.", _NODES)] = "",
    rdzv_endpoint: Annotated[str, option("HOST:PORT", "The endpoint of a c10d rendezvous.", _NODES)] = "",
    rdzv_id: Annotated[str, option("", "The run's id. Default: a random one.", _NODES)] = "",
    rdzv_conf: Annotated[str, option("K=V,..", "Options of the rendezvous.", _NODES)] = "",
    standalone: Annotated[bool, switch("This node alone (the default).", _NODES, "--standalone")] = False,
    role: Annotated[str, option("", "The value of ROLE_NAME for the workers.", _NODES)] = "default",
    monitor_interval: Annotated[
        float, option("", "Seconds between two checks of the other nodes.", _NODES)
    ] = 0.1,
) -> None:
    """Run a program on N workers.

    A script that sets up torch.distributed (or uses Accelerate, Lightning, samestep.join, ...) runs as it
    does under torchrun. A script that starts its own workers is started once. In a serial script each model
    call is split across the workers. Under srun, mpirun or torchrun the launcher's tasks are the workers.
    """
    rendezvous = Rendezvous(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        backend=rdzv_backend,
        endpoint=rdzv_endpoint,
        options=rdzv_conf,
        standalone=standalone,
    )
    job = Job(
        program=job_flags.program(target, arguments or [], module=module, no_python=no_python),
        workers=workers,
        per_node=job_flags.per_node(nproc_per_node),
        nodes=job_flags.nodes(rendezvous),
        max_restarts=max_restarts,
        logs=job_flags.logs(log_dir, redirects, tee),
        run_id=rdzv_id,
        role=role,
        monitor_interval_s=monitor_interval,
    )
    if rerun_in_allocation(job, dry_run=dry_run):
        return
    mode = options.checked_mode(mode)
    if not dry_run:
        fix_hash_seed(job, mode)
    decision = decide(
        job, mode=mode, threads=threads, master=job_flags.master(rendezvous), environment=env.snapshot()
    )
    decision = with_options(
        with_binding(decision, bind),
        explain=explain,
        batch_norm=batch_norm,
        load=load,
        split=split,
        random=random,
        device=device,
        algorithm=algorithm,
        check_every=check_every,
        all_output=all_output,
    )
    clocking = job_flags.clocking(clock, steps=clock_steps, warm_up=clock_warm_up)
    decision = with_checks(
        decision, hang_timeout=hang_timeout, sanitize=sanitize, count=count, clocking=clocking
    )
    decision = with_scratch(decision, scratch)
    job_flags.refuse_unused(job, decision.plan, rendezvous, launcher=decision.detected.launcher)
    if dry_run:
        print("\n".join(dry_run_lines(decision)))
        return
    if decision.is_main:
        for line in banner(decision):
            log(line)
    code = execute(decision)
    # Without this the interpreter takes 0.4 s to unload torch.
    leave(code)
