"""Implements ``samestep verify``, which compares the steps on several workers with those on one."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base import env
from samestep.base.console import BAD, DOUBTFUL, GOOD, inform, print_verdict
from samestep.base.errors import UsageError
from samestep.base.machine.description import cpu_share, refuse_beyond_memory
from samestep.base.owned_folders import owned_folder, temporary_directory
from samestep.base.record import json_line
from samestep.base.signals import ended_by_interrupt
from samestep.base.units import MOST_WORKERS, check_hang_timeout, counted
from samestep.cli.options import launch, results
from samestep.cli.options.declare import option, with_flags_of
from samestep.cli.options.serial import SPLIT, Mode, checked_mode
from samestep.launch.job import Program
from samestep.launch.local.child import Watch, unwatched
from samestep.launch.local.forking import fork_is_safe, release_compute_threads
from samestep.launch.source.launcher_variables import is_of_launcher
from samestep.launchers.detect import Detected
from samestep.launchers.detect_task import detect_task
from samestep.launchers.processors import thread_variables, threads_per_rank
from samestep.run.decision import recognize_script, refuse_own_workers
from samestep.run.rerun import rerun_once_in_allocation
from samestep.verify.verdict import Finding, Report

SETTINGS: Mapping[str, Any] = {"allow_interspersed_args": True, "ignore_unknown_options": False}
_AS_ONE_TASK = {
    "slurm": "in a job's script without srun, or srun --nodes=1 --ntasks=1 --cpus-per-task=CORES",
    "openmpi": "without mpirun, or with -np 1 --bind-to none",
    "mpich": "without mpirun, or with -np 1",
}
"""The way to start a single process with all cores, by launcher."""
_WORDS = {
    "same": "the runs take the same steps",
    "same but for exceptions": "the runs take the same steps, except for the named exceptions",
    "inconclusive": "the findings leave open whether the runs are the same",
    "different": "the runs differ",
}
_EXIT_CODES = {"different": 1, "inconclusive": 3}
_STYLES = {"same": GOOD, "same but for exceptions": DOUBTFUL, "inconclusive": DOUBTFUL, "different": BAD}
"""The color of each verdict on a terminal."""


@with_flags_of(Options, only=SPLIT, defaults=True)
def verify(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A training script, serial or not; with -m a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    *,
    workers: launch.WorkerCounts = "1,2",
    steps: Annotated[
        int | None,
        option(
            "K", "Steps of each optimizer in each run (default: into a second epoch; two minutes at most)."
        ),
    ] = None,
    against: Annotated[
        Path | None, option("OTHER.py", "Compare with this script on one worker, not with SCRIPT on one.")
    ] = None,
    module: launch.Module = False,
    mode: Mode = "auto",
    hang_timeout: Annotated[float, launch.HANG_TIMEOUT] = 60.0,
    as_json: results.AsJson = False,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    **settings: Any,
) -> int:
    """Check that a script takes the same steps on several workers as on one.

    Runs the script for some steps on each number of workers, on this node or on one node of the allocation,
    and compares samples, losses, gradients, learning rates, parameters and printed numbers with those of one
    worker. Files that the script writes are discarded. The exit code is 0 if the steps are the same, also
    with named exceptions, 1 if they differ, and 3 if they could not be compared; the report names the causes.
    """
    sizes = _sizes(workers, least=2 if against is None else 1)
    check_hang_timeout(hang_timeout)
    if steps is not None and steps < 1:
        raise UsageError(f"--steps is {steps}; give at least 1.")
    rerun_once_in_allocation()
    _refuse_several_tasks(detect_task(env.snapshot()))
    report = _report(
        launch.program(target, arguments or (), module=module),
        None if against is None else launch.program(str(against), arguments or (), module=False),
        sizes,
        steps=steps,
        mode=mode,
        hang_timeout=hang_timeout,
        options=Options(**settings),
    )
    if as_json:
        print(json_line(report.as_json()))
    else:
        _print(report)
    return _EXIT_CODES.get(report.verdict, 0)


def verified(script: Path, against: Path, sizes: Sequence[int], *, hang_timeout: float) -> Report:
    """Return the report on a script that is compared with another one, without arguments.

    Raises:
        UsageError: one of them is no script, or the other one fails on one worker.
    """
    program, serial = (launch.program(str(path), module=False) for path in (script, against))
    return _report(program, serial, sizes, hang_timeout=hang_timeout)


def _report(
    script: Program,
    against: Program | None,
    sizes: Sequence[int],
    *,
    hang_timeout: float,
    steps: int | None = None,
    mode: Mode = "auto",
    options: Options = DEFAULTS,
) -> Report:
    """Fork the workers of all runs, and return the report."""
    kinds = {program: _kind(program, mode) for program in (script, against) if program is not None}
    _prepare(max(sizes))
    from samestep.verify.script_runs import Script, ScriptRuns
    from samestep.verify.verification import Verification

    with owned_folder() as scratch:
        watch = partial(_watch, limit_s=hang_timeout)
        return Verification(
            script=Script(program=script, kind=kinds[script]),
            against=None if against is None else Script(program=against, kind=kinds[against]),
            workers=[size for size in sizes if size > 1 or against],
            steps=steps,
            runs=ScriptRuns(scratch=scratch, options=options, watch=watch, tell=inform),
        ).run()


def _refuse_several_tasks(detected: Detected) -> None:
    """Refuse to run as several tasks, each of which would do the whole work."""
    launcher, tasks = detected.launcher, detected.place.size
    if tasks > 1:
        raise UsageError(
            f"verify starts its own workers on one node, but {launcher} started it as {tasks} tasks. Start "
            f"one: {_AS_ONE_TASK.get(launcher, 'without ' + launcher)}."
        )


def _watch(size: int, kind: str, *, limit_s: float) -> Watch:
    if not limit_s:
        return unwatched
    from samestep.run.worker_monitors import idle_watch, watchdog

    if size == 1:
        return idle_watch(limit_s=limit_s)
    if kind == "serial":  # its helpers have a limit of their own
        return unwatched
    return watchdog(limit_s=limit_s, forked=True)


def _sizes(text: str, *, least: int) -> list[int]:
    sizes = sorted(set(launch.worker_counts(text)))
    if not least <= sizes[-1] <= MOST_WORKERS:
        raise UsageError(f"-n {text} has the maximum {sizes[-1]}; give {least} to {MOST_WORKERS:,} workers.")
    refuse_beyond_memory(sizes[-1])
    return sizes


def _kind(program: Program, mode: str | None) -> Any:
    if checked_mode(mode) != "auto":
        return "serial" if mode == "autopilot" else "native"
    script = recognize_script(program, is_of_launcher)  # its own data parallelism is verified, if it has any
    refuse_own_workers(program, script, verb="verify")
    return script.kind


def _prepare(size: int) -> None:
    """Import torch once, and stop its threads, so that workers can be forked."""
    threads = threads_per_rank(
        env.snapshot(), cpu_share(), local_size=size, sharing=size, launcher="samestep", asked=None
    )
    env.export(thread_variables(threads))
    temporary_directory()  # the import needs it
    with ended_by_interrupt():
        import torch._dynamo  # the first optimizer step of each worker would load it
        import torch.distributed  # noqa: F401

    from samestep.autopilot.files.file_calls import find_references

    find_references()
    if not (fork_is_safe() and release_compute_threads()):
        raise UsageError("verify forks its workers, and this process cannot fork safely; it needs Linux.")


def _print(report: Report) -> None:
    console = Console(file=sys.stdout, highlight=False)
    if report.rows:
        console.print("Largest relative deviation from the run on one worker:")
        table = Table(box=None, pad_edge=False)
        quantities = ("loss", "gradient", "parameters")
        for heading in ("workers", "steps", *quantities):
            table.add_column(heading, justify="right")
        table.add_column("", overflow="fold")
        for row in report.rows:
            values = [f"{row.deviations[name]:.1e}" for name in quantities]
            is_rounding = row.is_rounding and row.verdict == "same"
            verdict = "same: rounding" if is_rounding else row.verdict
            table.add_row(
                str(row.workers), str(row.steps), *values, Text(verdict, style=_STYLES[row.verdict])
            )
        console.print(table)
    for finding in report.all_findings:
        console.print(f"{finding.cause} ({_where(finding)}): {finding.message}", soft_wrap=True, markup=False)
    missing = ", ".join(report.not_compared.values())
    meaning = f": {_WORDS[report.verdict]}, over {counted(report.steps, 'step')}"
    meaning += f"{missing and f'; not compared: {missing}'}."
    print_verdict((report.verdict, _STYLES[report.verdict]), meaning)


def _where(finding: Finding) -> str:
    """Return the gravity of a finding, unless it is a fault, and the workers, ranks, step and line."""
    parts: list[str] = [] if finding.kind == "fault" else [finding.kind]
    parts.append(counted(finding.workers, "worker"))
    if finding.ranks:
        parts.append(f"rank{'s' * (len(finding.ranks) > 1)} {', '.join(map(str, finding.ranks))}")
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    if finding.place is not None:
        file, line = finding.place
        parts.append(f"{Path(file).name}:{line}")
    return ", ".join(parts)
