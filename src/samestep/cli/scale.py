"""Implements ``samestep scale``, which measures speedup and efficiency on several numbers of workers."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import check_hang_timeout
from samestep.cli import options
from samestep.cli.options import option, switch
from samestep.cli.recipe_flags import refuse_wrong_flags
from samestep.cli.scale_jobs import (
    PerNode,
    SlurmJobs,
    collected_from,
    refuse_flags_of_jobs,
    refuse_flags_with_collect,
    slurm_jobs,
)
from samestep.cli.scale_local import LocalRuns, local_runs
from samestep.cli.scale_study import default_folder, refuse_taken
from samestep.cli.scale_target import (
    batch_of,
    compared,
    kind_of,
    refuse_ambiguous,
    refuse_misplaced,
    scaling_of,
)
from samestep.cli.setting_flags import as_arguments
from samestep.cli.slurm_flags import (
    Account,
    Constraint,
    CpusPerTask,
    Directives,
    GpusPerNode,
    LoadedModules,
    Memory,
    Partition,
    Qos,
    Reservation,
    Runtime,
    Time,
)
from samestep.cli.submit_common import Container, Detach, Lines, Venv
from samestep.studies.report.write import write_figures
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.study_file import as_json as as_json_of
from samestep.studies.scaling.analysis.study_file import seen_from_here
from samestep.studies.scaling.report.figures import charts
from samestep.studies.scaling.report.text import study_text, terminal_width
from samestep.studies.scaling.sweep.collect import Frame, source_of
from samestep.studies.scaling.sweep.plan import Request, plan, refuse_too_many
from samestep.studies.scaling.sweep.variants import compared_threads

SETTINGS: Mapping[str, Any] = {
    "allow_interspersed_args": True,
    # Options that scale does not have belong to the script, or to train.
    "ignore_unknown_options": True,
}

_SWEEP, _MEASUREMENT, _JOBS = "Sweep", "Measurement", "Slurm jobs"


def scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A script, a recipe, or with -m a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...",
            help="Arguments of the target; {n}, {local}, {nodes}, {256/n}, {32*n} are replaced. All words "
            "after -- are arguments.",
        ),
    ] = None,
    *,
    workers: options.WorkerCounts = "1,2",
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
    module: options.Module = False,
    steps: Annotated[int, option("K", "Measured steps of each run.", _MEASUREMENT)] = 30,
    warm_up: Annotated[int, option("W", "Steps before the measured ones.", _MEASUREMENT)] = 5,
    repeats: Annotated[int, option("R", "Runs of each configuration, interleaved.", _MEASUREMENT)] = 3,
    seed: Annotated[int, option("", "Seed of the order of the runs.", _MEASUREMENT)] = 0,
    oversubscribe: Annotated[
        bool, switch("Allow more workers than cores or GPUs.", _MEASUREMENT, "--oversubscribe")
    ] = False,
    threads: options.Threads = None,
    bind: Annotated[str | None, options.BIND] = None,
    hang_timeout: Annotated[float | None, options.HANG_TIMEOUT] = None,
    mode: options.Mode = None,
    batch_norm: options.BatchNorm = None,
    split: options.Split = None,
    load: options.Load = None,
    random: options.Random = None,
    device: options.Device = None,
    algorithm: options.Algorithm = None,
    worth: options.Worth = None,
    out: Annotated[
        Path | None, option("DIR", "Folder of the study. Default: studies/NAME-TIME.", options.RESULTS_PANEL)
    ] = None,
    figures: options.Figures = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
    submit: Annotated[str | None, option("slurm", "Submit one job per number of workers.", _JOBS)] = None,
    detach: Detach = False,
    collect: Annotated[Path | None, option("DIR", "Collect the runs of a submitted study.", _JOBS)] = None,
    nproc_per_node: Annotated[
        int | None, option("K", "Maximum workers per node. Default: all.", _JOBS)
    ] = None,
    gpus_per_node: GpusPerNode = 0,
    cpus_per_task: CpusPerTask = None,
    mem: Memory = None,
    time: Time = None,
    partition: Partition = None,
    account: Account = None,
    reservation: Reservation = None,
    qos: Qos = None,
    constraint: Constraint = None,
    directive: Directives = None,
    load_module: LoadedModules = None,
    venv: Venv = None,
    container: Container = None,
    container_runtime: Runtime = None,
    line: Lines = None,
) -> int:
    """Measure a training on several numbers of workers: speedup, efficiency, and the causes of its loss.

    Each run is a separate command that is stopped after some steps; files that it writes are discarded. The
    exit code is 0 if every number of workers was measured, and 1 if a run failed and the others are reported.
    """
    site = {
        "partition": partition,
        "account": account,
        "reservation": reservation,
        "qos": qos,
        "constraint": constraint,
        "time": time,
        "mem": mem,
        "cpus_per_task": cpus_per_task,
        "directives": directive,
        "modules": load_module,
        "venv": venv,
        "container": container,
        "container_runtime": container_runtime,
        "lines": line,
    }
    per_node = PerNode(workers=nproc_per_node, gpus=gpus_per_node)
    _refuse_figures(figures, detach=detach)
    if collect is not None:
        refuse_flags_with_collect(context)
    if submit is None:
        refuse_flags_of_jobs({**site, **per_node.flags(), "detach": detach})
    if collect is not None:
        return _print_study(collected_from(collect, target, bar=worth), collect, figures, as_json=as_json)
    if target is None:
        raise UsageError("no target is given; give a script or a recipe.")
    kind = kind_of(target, arguments or [], module=module, mode=mode)
    refuse_ambiguous(target, kind, sys.argv, {name for one in context.command.params for name in one.opts})
    numbers = _numbers(workers)
    check_hang_timeout(hang_timeout or 0.0)
    flags = {
        "mode": mode,
        "batch_norm": batch_norm,
        "split": split,
        "load": load,
        "random": random,
        "device": device,
        "algorithm": algorithm,
        "bind": bind,
        "hang_timeout": hang_timeout,
    }
    refuse_misplaced(target, flags, compare or [], kind)
    variants = compared(compare or [], kind)
    each = compared_threads(variants)
    if submit is None:
        runs: LocalRuns | SlurmJobs = local_runs(
            numbers, threads=threads, compared=each, on_cpu=device == "cpu"
        )
    else:
        runs = slurm_jobs(submit, max(numbers), site, per_node=per_node, threads=threads, detach=detach)
    if not oversubscribe:
        refuse_too_many(numbers, places=runs.places, what=runs.what)
    request = Request(
        target=target,
        kind=kind,
        arguments=tuple(arguments or ()),
        workers=numbers,
        scaling=scaling_of(scaling),
        batch=batch_of(target, arguments or [], scaling) if kind == "recipe" else None,
        flags=tuple(as_arguments({**flags, "threads": None if each else runs.threads})),
        variants=variants,
        steps=steps,
        warm_up=warm_up,
        repeats=repeats,
        seed=seed,
        per_node=runs.per_node,
        folder=out or default_folder(target),
    )
    trials = plan(request)
    if kind == "recipe":
        refuse_wrong_flags(trials)
    frame = Frame(request=request, bar=worth, places=runs.places)
    refuse_taken(request.folder)
    if dry_run:
        print(runs.describe(frame, trials))
        return 0
    if kind == "script":
        frame = replace(frame, source=source_of(Path(target)))
    return _print_study(runs.execute(frame, trials), request.folder, figures, as_json=as_json)


def _refuse_figures(figures: Path | None, *, detach: bool) -> None:
    """Refuse a folder that cannot be written to, or that nothing will be written to."""
    options.refuse_unwritable("--figures", figures)
    if detach and figures is not None:
        raise UsageError("--figures needs the results, and --detach does not wait; give it with --collect.")


def _print_study(
    result: tuple[Study, int] | None, folder: Path, figures: Path | None, *, as_json: bool
) -> int:
    """Print the study in `folder`, if there is one already, save its charts, and return the exit code."""
    if result is None:
        return 0
    study, code = result
    if as_json:
        print(json_line(as_json_of(study)).rstrip())
    else:
        print(study_text(seen_from_here(study, folder), terminal_width()))
    if figures is not None:
        log(write_figures(charts(study), figures))
    return code


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of workers of ``-n``.

    Raises:
        UsageError: the text is not a list of numbers, or has one of them twice.
    """
    numbers = tuple(options.worker_counts(text))
    twice = next((one for one, other in pairwise(numbers) if one == other), None)
    if twice is not None:
        raise UsageError(
            f"-n {text} has {twice} twice; give each number once, and the number of runs with --repeats."
        )
    return numbers
