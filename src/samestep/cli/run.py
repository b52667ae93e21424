"""Implements ``samestep run``, which runs a program on N workers."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.autopilot.script.options import Options
from samestep.base import env
from samestep.base.console import inform, log
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import workers_per_node
from samestep.base.machine.description import cpu_share
from samestep.cli.options import launch
from samestep.cli.options.auto_workers import choose
from samestep.cli.options.declare import CLOCK_PANEL, WORKERS_PANEL, grouped, option, switch, with_flags_of
from samestep.cli.options.defaults import Config
from samestep.cli.options.nodes import Rendezvous, refuse_unused
from samestep.cli.options.serial import Mode, checked_mode, with_options
from samestep.cli.other_names import own_name
from samestep.launch.job import Job, Logs, Program, Std
from samestep.launch.local.hosting import leave
from samestep.launch.local.output import check_writable
from samestep.launch.source.flags import flags_of
from samestep.run.decision import (
    Decision,
    banner,
    decide,
    dry_run_lines,
    oversubscription,
    source_file,
    with_binding,
    with_checks,
    with_scratch,
)
from samestep.run.execution import execute
from samestep.run.rerun import rerun_in_allocation
from samestep.run.scale_hint import scale_hint

SETTINGS: Mapping[str, Any] = {
    # Everything after the program belongs to the program, even if it resembles an option of samestep.
    "allow_interspersed_args": False,
}

_OUTPUT = "Output"
_COUNTS = ("workers", "nproc-per-node", "nnodes")
"""Options with numbers of workers, which are often typed after the program."""


@grouped
@with_flags_of(Options, defaults=True)
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help="A script; a module with -m, an executable with --no-python."),
    ],
    arguments: launch.Arguments = None,
    *,
    start: launch.RunWorkers,
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
        bool, switch("The program is an executable of any kind.", WORKERS_PANEL, "--no-python")
    ] = False,
    config: Config = None,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
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
        workers=start.number,
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
    if start.workers is None:  # otherwise a second number is meant for the program
        _refuse_misplaced(job.program)
    check_writable(logs)
    mode, threads = checked_mode(mode), start.threads
    if start.workers == launch.AUTO:
        flags = {"mode": mode, "bind": start.bind, "hang_timeout": start.hang_timeout}
        job, threads = choose(job, flags, settings, dry_run=dry_run)
    if rerun_in_allocation(job, dry_run=dry_run):
        return
    decision = decide(job, mode=mode, threads=threads, master=rendezvous.master(), environment=env.snapshot())
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
        warning = oversubscription(decision)
        print("\n".join(dry_run_lines(decision)))
        if warning:
            log(warning)
        return
    if decision.is_main:
        _print_banner(decision, config)
    code = execute(decision)
    if code == 0 and (hint := scale_hint(decision)):
        inform(hint)
    # Without this the interpreter takes 0.4 s to unload torch.
    leave(code)


def _print_banner(decision: Decision, config: Path | None) -> None:
    warning = oversubscription(decision)
    for line in banner(decision):
        inform(line)
    if config is not None:
        inform(f"options that are not given are read from {config}")
    if warning:
        log(warning)


def _refuse_misplaced(program: Program) -> None:
    """Refuse a number of workers after the program, if the program does not read it.

    Raises:
        UsageError: there is one; the message shows the command that is probably meant.
    """
    file, roots = source_file(program) if program.kind != "executable" else (None, [])
    words = [word.partition("=")[0] for word in program.args]
    given = [
        at for at, word in enumerate(words) if word in ("-n", "--workers") or own_name(word[2:]) in _COUNTS
    ]
    if not given or file is None or program.target == "samestep":
        return
    its, word = flags_of(file, roots=roots), words[given[0]]
    if its.parser is None and not its.reads_argv and not {word, word.replace("_", "-")} & set(its.literal):
        flag = [one for one in program.args[given[0] : given[0] + 2] if one != "--"]
        flag = flag[:1] if "=" in flag[0] else flag
        rest = shlex.join([*program.args[: given[0]], *program.args[given[0] + len(flag) :]])
        what = f"{'-m ' if program.kind == 'module' else ''}{shlex.quote(program.target)} {rest}".rstrip()
        raise UsageError(
            f"{word} after {program.target} is passed to {program.target}, which has no such option. "
            f"Put it before: samestep run {shlex.join(flag)} {what}"
        )
