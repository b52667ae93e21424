"""Implements ``samestep scale``, which measures speedup and efficiency on several numbers of workers."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from samestep.autopilot.script.options import Options
from samestep.base.console import inform
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import check_hang_timeout
from samestep.cli.options import launch, results
from samestep.cli.options.declare import (
    JOBS_PANEL,
    RESULTS_PANEL,
    as_arguments,
    given,
    grouped,
    option,
    switch,
    with_flags_of,
)
from samestep.cli.options.serial import Mode
from samestep.cli.other_names import dashed
from samestep.cli.scale_target import OF_SERIAL, Target, refuse_wrong_flags
from samestep.report.run_page import NAME
from samestep.report.write import write_figures, write_pdf
from samestep.scaling.analysis.study import Study, seen_from_here
from samestep.scaling.report.page import charts
from samestep.scaling.report.tables import study_text, terminal_width
from samestep.scaling.sweep.execution import (
    Frame,
    default_folder,
    own_folder,
    refuse_taken,
    source_of,
)
from samestep.scaling.sweep.local_runs import LocalRuns, local_runs
from samestep.scaling.sweep.plan import Request, Scaling, compared_threads, plan, refuse_too_many
from samestep.scaling.sweep.slurm_runs import SlurmRuns, collect
from samestep.submit.site_defaults import (
    SITE_PANEL,
    SIZE_PANEL,
    SOFTWARE_PANEL,
    SlurmSite,
    site_of,
)

SETTINGS: Mapping[str, Any] = {
    "allow_interspersed_args": True,
    # Options that scale does not have belong to the script, or to train.
    "ignore_unknown_options": True,
    # Other names of options belong to them as well.
    "token_normalize_func": dashed,
}

_SWEEP, _MEASUREMENT = "Sweep", "Measurement"
_JOB_PANELS = (JOBS_PANEL, SIZE_PANEL, SITE_PANEL, SOFTWARE_PANEL)
_WITH_COLLECT = ("--collect", "--worth", "--figures", "--pdf", "--json", "--quiet")
"""Options that do not change how a study is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The options of the runs and their order."""

    steps: Annotated[int, option("K", "Measured steps of each run.", _MEASUREMENT)] = 30
    warm_up: Annotated[int, option("W", "Steps before the measured ones.", _MEASUREMENT)] = 5
    repeats: Annotated[int, option("R", "Runs of each configuration, interleaved.", _MEASUREMENT)] = 3
    seed: Annotated[int, option("", "Seed of the order of the runs.", _MEASUREMENT)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJobs:
    """The options of a study whose runs are Slurm jobs."""

    submit: Annotated[str | None, option("slurm", "Submit one job per number of workers.", JOBS_PANEL)] = None
    detach: launch.Detach = False
    collect: Annotated[Path | None, option("DIR", "Collect the runs of a submitted study.", JOBS_PANEL)] = (
        None
    )
    nproc_per_node: Annotated[
        int | None, option("K", "Maximum workers per node. Default: all.", JOBS_PANEL)
    ] = None
    gpus_per_node: launch.GpusPerNode = 0

    def runs(self, site: SlurmSite, largest: int, threads: int | None) -> SlurmRuns:
        """Return Slurm jobs for runs of up to `largest` workers."""
        each = self.gpus_per_node or largest
        return SlurmRuns(
            site=site,
            places=largest,
            per_node=each if self.nproc_per_node is None else self.nproc_per_node,
            gpus=self.gpus_per_node,
            threads=threads,
            detach=self.detach,
        )


@grouped
@with_flags_of(Options, only=OF_SERIAL)
@with_flags_of(SlurmSite)
def scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A script, a recipe, or with -m a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS",
            help="Arguments of the target; {n}, {local}, {nodes}, {256/n}, {32*n} are replaced. All words "
            "after -- are arguments.",
        ),
    ] = None,
    *,
    workers: launch.WorkerCounts = "1,2",
    scaling: Annotated[
        str,
        option(
            "",
            "strong: constant global batch; weak: constant batch per worker; both; auto: as the "
            "arguments are.",
            _SWEEP,
        ),
    ] = "auto",
    compare: Annotated[
        list[str] | None,
        option(
            "WHAT=A,B",
            "Variants to compare: launcher=samestep,torchrun, sync=ddp,flat, env:NAME=1,2. Repeatable.",
            _SWEEP,
        ),
    ] = None,
    module: launch.Module = False,
    measurement: Measurement,
    oversubscribe: Annotated[
        bool, switch("Allow more workers than cores or GPUs.", _MEASUREMENT, "--oversubscribe")
    ] = False,
    threads: launch.Threads = None,
    bind: Annotated[str | None, launch.BIND] = None,
    hang_timeout: Annotated[float | None, launch.HANG_TIMEOUT] = None,
    mode: Mode = None,
    worth: results.Worth = None,
    out: Annotated[
        Path | None, option("DIR", "Folder of the study. Default: studies/NAME-TIME.", RESULTS_PANEL)
    ] = None,
    output: results.PageOutput,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    dry_run: launch.DryRun = False,
    submission: StudyJobs,
    **settings: Any,
) -> int:
    """Measure a training on several numbers of workers: speedup, efficiency, and the causes of its loss.

    Each run is a separate command that is stopped after some steps; files that it writes are discarded. The
    exit code is 0 if every number of workers was measured, and 1 if a run failed and the others are reported.
    """
    output.check()
    _refuse_unused(context, submission)
    if submission.collect is not None:
        if target is not None:
            raise UsageError(f"--collect {submission.collect} has its own target; leave {target} out.")
        return _print_study(collect(submission.collect, bar=worth), submission.collect, output)
    if target is None:
        raise UsageError("no target is given; give a script or a recipe.")
    found = Target.of(target, arguments or (), module=module, mode=mode)
    found.refuse_ambiguous(sys.argv, {name for one in context.command.params for name in one.opts})
    numbers = _numbers(workers)
    check_hang_timeout(hang_timeout or 0.0)
    flags = {"mode": mode, **given(settings, Options), "bind": bind, "hang_timeout": hang_timeout}
    found.refuse_misplaced(flags, compare or ())
    variants = found.compared(compare or ())
    each = compared_threads(variants)
    runs: LocalRuns | SlurmRuns
    if submission.submit is None:
        runs = local_runs(numbers, threads=threads, compared=each, on_cpu=settings["device"] == "cpu")
    else:
        found.refuse_jobs()
        runs = submission.runs(site_of(SlurmSite, given(settings, SlurmSite)), numbers[-1], threads)
    if not oversubscribe:
        refuse_too_many(numbers, places=runs.places, what=runs.what)
    request = Request(
        target=target,
        kind=found.kind,
        arguments=found.arguments,
        workers=numbers,
        scaling=cast("Scaling", scaling),
        batch=found.batch(scaling),
        flags=tuple(as_arguments({**flags, "threads": None if each else runs.threads})),
        variants=variants,
        per_node=runs.per_node,
        limits_gpus=found.limits_gpus(),
        threads=runs.each,
        on_cores=runs.on_cores,
        folder=out or default_folder(target),
        **asdict(measurement),
    )
    trials = plan(request)
    if found.kind == "recipe":
        refuse_wrong_flags(trials)
    frame = Frame(request=request, bar=worth, places=runs.places)
    refuse_taken(request.folder)
    if dry_run:
        print(runs.describe(frame, trials))
        return 0
    if found.kind == "script":
        frame = replace(frame, source=source_of(Path(target)))
    with own_folder(request.folder) if out is None else nullcontext(out) as folder:
        request = replace(request, folder=folder)
        result = runs.execute(replace(frame, request=request), plan(request))
    return _print_study(result, folder, output)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of workers of ``-n``, each once."""
    numbers = tuple(launch.worker_counts(text))
    if twice := next((one for one in numbers if numbers.count(one) > 1), None):
        raise UsageError(
            f"-n {text} has {twice} twice; give each number once, and the number of runs with --repeats."
        )
    return numbers


def _refuse_unused(context: typer.Context, submission: StudyJobs) -> None:
    """Refuse options of jobs without ``--submit``, and of a new study with ``--collect``."""
    if submission.submit not in (None, "slurm"):
        raise UsageError(f"--submit {submission.submit!r} is not supported; give slurm.")
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        flag = "-n" if "-n" in one.opts else max(one.opts, key=len)
        if source is None or source.name != "COMMANDLINE" or not flag.startswith("-"):
            continue
        if submission.collect is not None and flag not in _WITH_COLLECT:
            raise UsageError(
                f"{flag} has no effect with --collect, which collects a study as it was submitted. Leave it "
                "out; only --worth, --figures, --pdf and --json go with --collect."
            )
        is_of_job = getattr(one, "rich_help_panel", "") in _JOB_PANELS
        if is_of_job and submission.submit is None and flag != "--collect" and context.params[one.name or ""]:
            raise UsageError(
                f"{flag} needs --submit slurm; give that too, or put an option of the script after --."
            )


def _print_study(result: tuple[Study, int] | list[str], folder: Path, output: results.PageOutput) -> int:
    """Print a study and save its charts, or print the numbers of its jobs; return the exit code."""
    if isinstance(result, list):
        found = {"jobs": result, "study": str(folder)}
        print(json_line(found) if output.as_json else "\n".join(result))
        return 0
    study, code = result
    if output.as_json:
        print(json_line(asdict(study)))
    else:
        print(study_text(seen_from_here(study, folder), terminal_width()))
    if output.figures is not None:
        inform(write_figures(charts(study), output.figures))
    if output.pdf is not None:
        inform(write_pdf(folder / NAME, output.pdf))
    return code
