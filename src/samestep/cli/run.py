"""Implements ``samestep run``, which runs a program on N workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.autopilot.script.options import Options
from samestep.base import env
from samestep.base.console import log
from samestep.base.machine.accelerators import workers_per_node
from samestep.base.machine.description import cpu_share
from samestep.cli.options import launch
from samestep.cli.options.declare import CLOCK_PANEL, WORKERS_PANEL, grouped, option, switch
from samestep.cli.options.nodes import Rendezvous, refuse_unused
from samestep.cli.options.serial import Mode, checked_mode, with_options
from samestep.cli.options.settings import with_flags_of
from samestep.launch.job import Job, Logs, Std
from samestep.launch.local.hosting import leave
from samestep.launch.local.output import check_writable
from samestep.run.decision import banner, decide, dry_run_lines, with_binding, with_checks, with_scratch
from samestep.run.execution import execute
from samestep.run.rerun import fix_hash_seed, rerun_in_allocation
from samestep.run.scale_hint import scale_hint

SETTINGS: Mapping[str, Any] = {
    # Everything after the program belongs to the program, even if it resembles an option of samestep.
    "allow_interspersed_args": False,
    # torchrun takes its flags with dashes and with underscores.
    "token_normalize_func": lambda name: name.replace("_", "-"),
}

_OUTPUT = "Output"


@grouped
@with_flags_of(Options, defaults=True)
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help="A script; a module with -m, an executable with --no-python."),
    ],
    arguments: launch.Arguments = None,
    *,
    start: launch.WatchedWorkers,
    nproc_per_node: Annotated[
        str | None, option("K", "Workers on each node: a number, gpu, cpu or auto.", WORKERS_PANEL)
    ] = None,
    sanitize: Annotated[
        bool,
        switch(
            "Compare the workers in every step: weights, steps, samples, random numbers, NaN. Slower.",
            WORKERS_PANEL,
            "--sanitize",
        ),
    ] = False,
    count: Annotated[
        bool,
        switch(
            "Print the number of steps and samples at the end, and where the time went.",
            CLOCK_PANEL,
            "--count",
        ),
    ] = False,
    recording: launch.Clock,
    mode: Mode = "auto",
    module: launch.Module = False,
    no_python: Annotated[
        bool, switch("The program is an executable of any kind.", "", "--no-python")
    ] = False,
    dry_run: launch.DryRun = False,
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
    rendezvous: Rendezvous,
    **settings: Any,
) -> None:
    """Run a program on N workers.

    A script that sets up torch.distributed (or uses Accelerate, Lightning, samestep.join, ...) runs as it
    does under torchrun. A script that starts its own workers is started once. In a serial script each model
    call is split across the workers. Under srun, mpirun or torchrun the launcher's tasks are the workers.
    """
    logs = Logs(folder=log_dir, redirects=Std.parse("--redirects", redirects), tee=Std.parse("--tee", tee))
    job = Job(
        program=launch.program(target, arguments or (), module=module, no_python=no_python),
        workers=start.workers,
        per_node=None
        if nproc_per_node is None
        else workers_per_node(nproc_per_node, cpus=cpu_share().usable),
        nodes=rendezvous.nodes(),
        max_restarts=start.max_restarts,
        logs=logs,
        run_id=rendezvous.rdzv_id,
        role=rendezvous.role,
        monitor_interval_s=rendezvous.monitor_interval,
    )
    check_writable(logs)
    if rerun_in_allocation(job, dry_run=dry_run):
        return
    mode = checked_mode(mode)
    if not dry_run:
        fix_hash_seed(job, mode)
    decision = decide(
        job, mode=mode, threads=start.threads, master=rendezvous.master(), environment=env.snapshot()
    )
    decision = with_options(with_binding(decision, start.bind), **settings)
    decision = with_checks(
        decision,
        hang_timeout=start.hang_timeout,
        sanitize=sanitize,
        count=count,
        clocking=recording.checked(),
    )
    decision = with_scratch(decision, scratch)
    refuse_unused(job, decision.plan, rendezvous, launcher=decision.detected.launcher)
    if dry_run:
        print("\n".join(dry_run_lines(decision)))
        return
    if decision.is_main:
        for line in banner(decision):
            log(line)
    code = execute(decision)
    if code == 0 and (hint := scale_hint(decision)):
        log(hint)
    # Without this the interpreter takes 0.4 s to unload torch.
    leave(code)
