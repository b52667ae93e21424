"""Implements ``samestep verify``, which compares the steps on several workers with those on one."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base import env
from samestep.base.console import BAD, DOUBTFUL, GOOD, inform, print_verdict
from samestep.base.errors import UsageError
from samestep.base.folders import owned_folder, refuse_unwritable_file, temporary_directory
from samestep.base.machine.accelerators import can_have_accelerators
from samestep.base.machine.description import cpu_share, refuse_beyond_cores, refuse_beyond_memory
from samestep.base.record import json_line, repository_of
from samestep.base.signals import ended_by_interrupt
from samestep.base.units import MOST_WORKERS, check_hang_timeout, counted
from samestep.cli.options import launch, results, script_words
from samestep.cli.options.declare import grouped, option, with_flags_of
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

SETTINGS = script_words.SETTINGS

_OTHER_RUNS = "Golden and resumed runs"
_ENDS = ("kill", "term", "stop")
_AS_ONE_TASK = {
    "slurm": "in a job's script without srun, or srun --nodes=1 --ntasks=1 --cpus-per-task=CORES",
    "openmpi": "without mpirun, or with -np 1 --bind-to none",
    "mpich": "without mpirun, or with -np 1",
    "flux": "in a job's script without flux run, or flux run -n 1 --cores=CORES",
}
"""The way to start a single process with all cores, by launcher."""
_WORDS = {
    "same": "the runs take the same steps",
    "same but for exceptions": "the runs take the same steps, except for the named exceptions",
    "inconclusive": "the findings leave open whether the runs are the same",
    "different": "the runs differ",
}
_REFERENCES = {
    "one worker": "the run on one worker",
    "golden": "the golden run",
    "uninterrupted": "the uninterrupted run",
}
_EXIT_CODES = {"different": 1, "inconclusive": 3}
_STYLES = {"same": GOOD, "same but for exceptions": DOUBTFUL, "inconclusive": DOUBTFUL, "different": BAD}
"""The color of each verdict on a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRuns:
    """The options of runs that are kept, or ended and resumed."""

    save: Annotated[Path | None, option("FILE", "Save this run as a golden run.", _OTHER_RUNS)] = None
    reference: Annotated[
        Path | None,
        option("FILE", "Compare with the golden run in FILE, not with one on one worker.", _OTHER_RUNS),
    ] = None
    resume_at: Annotated[
        int | None,
        option("K", "End the script after K steps, and compare the run that resumes it.", _OTHER_RUNS),
    ] = None
    resume_with: Annotated[
        str, option("ARGS", "Further arguments of the script that is resumed, as one text.", _OTHER_RUNS)
    ] = ""
    end_by: Annotated[
        str,
        option(
            "",
            "How it is ended: by SIGKILL, by SIGTERM, or as by --clock-steps.",
            _OTHER_RUNS,
            choices=_ENDS,
        ),
    ] = "kill"

    @property
    def is_golden(self) -> bool:
        """Whether a golden run is saved or compared with."""
        return self.save is not None or self.reference is not None

    @property
    def is_asked(self) -> bool:
        """Whether the reference is another run than that on one worker."""
        return self.is_golden or self.resume_at is not None

    @property
    def words(self) -> list[str]:
        """The further arguments of a script that is resumed, as a shell splits them."""
        try:
            return shlex.split(self.resume_with)
        except ValueError as error:
            why = str(error).lower()
            raise UsageError(
                f"--resume-with {self.resume_with!r} does not split into arguments: {why}."
            ) from None

    def check(self) -> None:
        """Check the options, before a script runs.

        Raises:
            UsageError: one of them is wrong.
        """
        if self.resume_at is not None and self.resume_at < 1:
            raise UsageError(f"--resume-at is {self.resume_at}; give at least 1.")
        if self.end_by not in _ENDS:
            raise UsageError(f"--end-by {self.end_by!r} is not one of {', '.join(_ENDS)}.")
        refuse_unwritable_file("--save", self.save)
        self.words  # noqa: B018 - raises


OTHER_RUNS = OtherRuns()
"""The options by default."""


@grouped
@with_flags_of(Options, only=SPLIT, defaults=True)
def verify(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A training script, serial or not; with -m a module.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments of the script. All words after -- are arguments."),
    ] = None,
    *,
    workers: Annotated[
        str | None,
        option(
            "N,..",
            "Numbers of workers (default: 1,2; one, by default 1, with --save and --reference).",
            launch.WORKERS_PANEL,
            "-n",
            "--workers",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option(
            "K", "Steps of each optimizer in each run (default: into a second epoch; two minutes at most)."
        ),
    ] = None,
    against: Annotated[
        Path | None, option("OTHER.py", "Compare with this script on one worker, not with SCRIPT on one.")
    ] = None,
    other_runs: OtherRuns = OTHER_RUNS,
    module: launch.Module = False,
    mode: Mode = "auto",
    oversubscribe: launch.Oversubscribe = False,
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
    default = "1" if other_runs.is_asked else "1,2"
    least = 1 if other_runs.is_asked or against else 2
    sizes = _sizes(default if workers is None else workers, least=least)
    if other_runs.is_golden and len(sizes) > 1:
        raise UsageError(f"-n {workers} has several numbers; a golden run has one number of workers.")
    if not oversubscribe and (settings["device"] == "cpu" or not can_have_accelerators()):
        refuse_beyond_cores(sizes[-1])
    other_runs.check()
    check_hang_timeout(hang_timeout)
    if steps is not None and steps < 1:
        raise UsageError(f"--steps is {steps}; give at least 1.")
    rerun_once_in_allocation()
    _refuse_several_tasks(detect_task(env.snapshot()))
    own_flags = {name for parameter in context.command.params for name in parameter.opts}
    script_words.refuse_target(target, own_flags, verb="verify")
    script = _runnable(launch.program(target, arguments or (), module=module), checked_mode(mode))
    names = script_words.names_after(target, context.obj)
    script_words.refuse_unclear(script.program, names, own_flags, verb="verify")
    serial = None
    if against is not None:
        serial = _runnable(launch.program(str(against), arguments or (), module=False))
    with _runs(max(sizes), hang_timeout=hang_timeout, options=Options(**settings)) as runs:
        if other_runs.save is not None:
            report = _saved(other_runs.save, script, sizes[0], runs, steps)
        elif other_runs.resume_at is not None:
            report = _resumed(script, sizes, runs, other_runs)
        elif other_runs.reference is not None:
            report = _compared(other_runs.reference, script, sizes[0], runs)
        else:
            report = _verified(script, serial, sizes, runs, steps)
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
    compared, serial = (_runnable(launch.program(str(path), module=False)) for path in (script, against))
    with _runs(max(sizes), hang_timeout=hang_timeout, options=DEFAULTS) as runs:
        return _verified(compared, serial, sizes, runs, steps=None)


class _Runnable(NamedTuple):
    """A program and its kind, before torch is imported."""

    program: Program
    kind: Any

    def script(self) -> Any:
        """Return the script."""
        from samestep.verify.script_runs import Script

        return Script(program=self.program, kind=self.kind)


def _runnable(program: Program, mode: str = "auto") -> _Runnable:
    """Return a program with the kind that it has in a mode."""
    return _Runnable(program, _kind(program, mode))


@contextmanager
def _runs(size: int, *, hang_timeout: float, options: Options) -> Iterator[Any]:
    """Yield what runs scripts on up to `size` workers, which this process forks."""
    _prepare(size)
    from samestep.verify.script_runs import ScriptRuns

    with owned_folder() as scratch:
        watch = partial(_watch, limit_s=hang_timeout)
        yield ScriptRuns(scratch=scratch, options=options, watch=watch, tell=inform)


def _verified(
    script: _Runnable, against: _Runnable | None, sizes: Sequence[int], runs: Any, steps: int | None
) -> Report:
    """Return the comparison of a script on several workers with one worker."""
    from samestep.verify.verification import Verification

    return Verification(
        script=script.script(),
        against=None if against is None else against.script(),
        workers=[size for size in sizes if size > 1 or against],
        steps=steps,
        runs=runs,
    ).run()


def _saved(file: Path, script: _Runnable, size: int, runs: Any, steps: int | None) -> Report:
    """Save a golden run, unless two runs of the script differ; return the report on the script."""
    from samestep.verify.golden import Origin, described_machine, refuse_other_file, write_golden
    from samestep.verify.golden_comparison import GoldenVerification

    refuse_other_file(file)
    program = script.program
    origin = Origin(
        script=program.target,
        arguments=tuple(program.args),
        commit=repository_of(Path(program.target)).get("commit", ""),
        workers=size,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=described_machine(),
    )
    golden, report = GoldenVerification(script=script.script(), runs=runs, workers=size, steps=steps).save(
        origin
    )
    if golden is None:
        inform(f"{file} is not written, because no other run could be compared with this one.")
        return report
    try:
        write_golden(file, golden)
    except OSError as error:
        raise UsageError(f"--save {file} cannot be written: {error.strerror}.") from None
    inform(f"{file} has {counted(report.steps, 'step')} of {counted(size, 'worker')}.")
    return report


def _resumed(script: _Runnable, sizes: Sequence[int], runs: Any, options: OtherRuns) -> Report:
    """Return the comparison of runs that resume a script with one that was not ended."""
    from samestep.verify.resumed_run import ResumedVerification

    assert options.resume_at is not None
    return ResumedVerification(
        script=script.script(),
        runs=runs,
        workers=sizes,
        steps=options.resume_at,
        arguments=options.words,
        ended_by=cast("Any", options.end_by),
    ).run()


def _compared(file: Path, script: _Runnable, size: int, runs: Any) -> Report:
    """Return the comparison of a script with the golden run in a file."""
    from samestep.verify.golden import described_machine, read_golden
    from samestep.verify.golden_comparison import GoldenVerification

    golden = read_golden(file)
    origin, here = golden.origin, described_machine()
    differing = (name for name, value in origin.machine.items() if here.get(name, value) != value)
    changed = [f"{name} {origin.machine[name]} (here {here[name]})" for name in differing]
    made = [counted(origin.workers, "worker"), origin.date, *filter(None, [origin.commit]), *changed]
    inform(f"{file} is a golden run: {', '.join(made)}.")
    return GoldenVerification(script=script.script(), runs=runs, workers=size).compare(golden)


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
        raise UsageError(
            f"-n {text}: the largest number is {sizes[-1]}; give one from {least} to {MOST_WORKERS:,}."
        )
    refuse_beyond_memory(sizes[-1])
    return sizes


def _kind(program: Program, mode: str) -> Any:
    if mode != "auto":
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
    if isinstance(sys.stdout, TextIOWrapper):  # a line of the script may have characters that stdout lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    # A line of a script is no emoji: rich has one for ":100:".
    console = Console(file=sys.stdout, highlight=False, emoji=False)
    if report.rows:
        console.print(f"Largest relative deviation from {_REFERENCES[report.reference]}:")
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
