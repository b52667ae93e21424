"""``samestep verify``: does a run on several workers take the steps of the run on one?"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine import cpu_share
from samestep.base.owned_folders import owned_folder
from samestep.base.record import json_line
from samestep.base.units import LONGEST_S, MOST_WORKERS
from samestep.cli import job_flags
from samestep.cli.outside import went_in_once
from samestep.cli.running import look_at, tell
from samestep.cli.serial_flags import checked
from samestep.launch.forking import fork_is_safe, release_compute_threads
from samestep.launch.job import Program
from samestep.launch.meet import found_here
from samestep.launch.programs import Watch, unwatched
from samestep.study.verdict import Report
from samestep.world.compute_threads import thread_variables, threads_per_rank
from samestep.world.detect import Detected

SETTINGS: Mapping[str, Any] = {"allow_interspersed_args": True, "ignore_unknown_options": False}
_ONCE = {
    "slurm": "in a job's script without srun, or srun --nodes=1 --ntasks=1 --cpus-per-task=CORES",
    "openmpi": "without mpirun, or with -np 1 --bind-to none",
    "mpich": "without mpirun, or with -np 1",
}
"""How each launcher starts one process, with all that it needs."""
_WORDS = {
    "same": "the runs take the same steps",
    "same but for exceptions": "the runs take the same steps, but for named exceptions",
    "different": "the runs differ",
}


def verify(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A training script, serial or not; with -m, a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="Handed to the script.")
    ] = None,
    *,
    workers: Annotated[
        str, typer.Option("-n", metavar="N,..", help="Numbers of workers; one is the reference.")
    ] = "1,2",
    steps: Annotated[int, typer.Option(metavar="K", help="Optimizer steps of each run.")] = 20,
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER.py", help="Compare with this script on one worker.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a Python module.")] = False,
    mode: Annotated[
        str, typer.Option(help="auto: look at the script; autopilot: it is serial; native: it is not.")
    ] = "auto",
    batch_norm: Annotated[str, typer.Option(help="Of a serial script, as in samestep run.")] = "global",
    load: Annotated[str, typer.Option(help="Of a serial script, as in samestep run.")] = "auto",
    split: Annotated[str, typer.Option(help="Of a serial script, as in samestep run.")] = "call",
    random: Annotated[str, typer.Option(help="Of a serial script, as in samestep run.")] = "global",
    device: Annotated[str, typer.Option(help="Of a serial script, as in samestep run.")] = "auto",
    hang_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="After which a run that hangs is ended; 0 is never.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Show whether a script's run on several workers is its run on one.

    Runs the script for some steps on each number of workers, of this node or of one of the allocation's, and
    compares samples, losses, gradients, learning rates, parameters and printed numbers. Files that it writes
    are not kept. Exit code 0: the same, or the same but for named exceptions; 1: different, with the cause.
    """
    sizes = _sizes(workers, least=2 if against is None else 1)
    if not 0 <= hang_timeout <= LONGEST_S:
        raise UsageError(f"--hang-timeout {hang_timeout:g} is no time to wait: give seconds, or 0 for never.")
    if steps < 1:
        raise UsageError(f"--steps {steps}: there must be at least one step to compare.")
    went_in_once()
    _refuse_several(found_here(env.snapshot()))
    _prepare(max(sizes))
    from samestep.study.verify import Script, Verification

    def script(path: str, *, module: bool) -> Script:
        program = job_flags.program(path, arguments or [], module=module, no_python=False)
        return Script(program=program, kind=_kind(program, mode))

    with owned_folder() as scratch:
        report = Verification(
            script=script(target, module=module),
            against=None if against is None else script(str(against), module=False),
            workers=[size for size in sizes if size > 1 or against],
            steps=steps,
            scratch=scratch,
            options=checked(batch_norm=batch_norm, load=load, split=split, random=random, device=device),
            watch=partial(_watch, limit_s=hang_timeout),
            tell=tell,
        ).run()
    if as_json:
        print(json_line(report.as_json()).rstrip())
    else:
        _show(report)
    return 1 if report.verdict == "different" else 0


def _refuse_several(found: Detected) -> None:
    """Refuse to be several processes, each of which would do the whole work."""
    launcher, tasks = found.launcher, found.place.size
    if tasks > 1:
        raise UsageError(
            f"verify runs the script on each number of workers in turn and starts them itself, on one node, "
            f"but {launcher} started {tasks} of it. Start one: {_ONCE.get(launcher, 'without ' + launcher)}."
        )


def _watch(size: int, kind: str, *, limit_s: float) -> Watch:
    if size == 1 or not limit_s:
        return unwatched
    from samestep.cli.watching import watching

    return watching(limit_s=limit_s, steered=kind == "serial", shared_by=size)


def _sizes(text: str, *, least: int) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"-n {text!r} is no list of numbers of workers, such as 1,2,4.") from None
    if sizes[-1] > MOST_WORKERS:
        raise UsageError(f"-n {text}: use {MOST_WORKERS:,} workers or fewer.")
    if sizes[0] < 1 or sizes[-1] < least:
        raise UsageError(
            f"-n {text}: name numbers of workers, of which one is at least {least}, such as 1,2,4."
        )
    return sizes


def _kind(program: Program, mode: str) -> Any:
    if mode not in ("auto", "autopilot", "native"):
        raise UsageError(f"--mode {mode!r} is none of auto, autopilot and native.")
    if mode != "auto":
        return "serial" if mode == "autopilot" else "native"
    kind = look_at(program).kind
    if kind == "spawns":
        raise UsageError(
            f"{program.target} starts its own workers, where verify cannot see them. Have it run as one of "
            "several workers under a launcher (torchrun, samestep run), or say --mode native if it can."
        )
    return kind


def _prepare(size: int) -> None:
    """Be able to fork workers: with torch loaded once, and no threads of it running."""
    threads = threads_per_rank(
        env.snapshot(), cpu_share(), local_size=size, sharing=size, launcher="samestep", asked=None
    )
    env.export(thread_variables(threads))
    import torch._dynamo  # the first optimizer step of each worker would load it
    import torch.distributed  # noqa: F401

    if not (fork_is_safe() and release_compute_threads()):
        raise UsageError("verify forks its workers, which this process cannot (Linux only).")


def _show(report: Report) -> None:
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
            table.add_row(
                str(row.workers), str(row.steps), *values, "same: rounding" if is_rounding else row.verdict
            )
        console.print(table)
    for finding in report.all_findings:
        where = f"{finding.workers} worker{'s' * (finding.workers > 1)}"
        at = "" if finding.step is None else f", step {finding.step}"
        console.print(f"{finding.cause} ({where}{at}): {finding.message}", soft_wrap=True, markup=False)
    if report.not_compared:
        console.print(
            f"Not seen, so not compared: no {' and no '.join(report.not_compared.values())} (--steps).",
            soft_wrap=True,
        )
    console.print(f"{report.verdict}: {_WORDS[report.verdict]}, over {report.steps} steps.", soft_wrap=True)
