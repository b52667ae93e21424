"""``samestep scale``: what more workers bring, and where the rest goes."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import LONGEST_S
from samestep.cli.recipe_flags import refuse_wrong_flags
from samestep.cli.scale_jobs import (
    Jobs,
    PerNode,
    collected_from,
    in_jobs,
    refuse_beside_collect,
    refuse_stray,
)
from samestep.cli.scale_study import default_folder, refuse_taken
from samestep.cli.scale_target import (
    batch_of,
    compared,
    kind_of,
    refuse_ambiguous,
    refuse_misplaced,
    scaling_of,
)
from samestep.cli.scale_where import Where, here
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
    Venv,
)
from samestep.cli.submitting import Container, Lines
from samestep.cli.worth import efficiency
from samestep.report.scaling.text import study_text, terminal_width
from samestep.scaling.files import as_json as as_json_of
from samestep.scaling.logs import seen_from_here
from samestep.scaling.study import Study
from samestep.trials.capacity import refuse_too_many
from samestep.trials.collect import Frame
from samestep.trials.plan import Request, plan
from samestep.trials.source import source_of
from samestep.trials.variants import compared_threads

SETTINGS: Mapping[str, Any] = {
    "allow_interspersed_args": True,
    # What is no flag of scale is the script's, or train's.
    "ignore_unknown_options": True,
}

_WHAT, _HOW, _RESULTS = "What", "How it is measured", "Results"
_SCRIPT = "Of a script, as in samestep run"
_JOBS = "As jobs of Slurm"


def scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A script, a recipe, or what -m says.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...",
            help="Handed to it, with {n}, {local}, {nodes}, {256/n}, {32*n} filled in. Behind -- all are.",
        ),
    ] = None,
    *,
    workers: Annotated[
        str, typer.Option("-n", metavar="N,..", help="Numbers of workers.", rich_help_panel=_WHAT)
    ] = "1,2",
    scaling: Annotated[
        str,
        typer.Option(
            help="strong: the global batch stays; weak: each worker's; both; auto: as the arguments say.",
            rich_help_panel=_WHAT,
        ),
    ] = "auto",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=A,B",
            help="In the same study: launcher=samestep,torchrun, sync=ddp,flat, env:NAME=1,2. Repeatable.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="TARGET is a Python module.", rich_help_panel=_WHAT)
    ] = False,
    steps: Annotated[
        int, typer.Option(metavar="K", help="Steps measured in each run.", rich_help_panel=_HOW)
    ] = 30,
    warm_up: Annotated[int, typer.Option(metavar="W", help="Steps before those.", rich_help_panel=_HOW)] = 5,
    repeats: Annotated[
        int, typer.Option(metavar="R", help="Runs of each, in turns.", rich_help_panel=_HOW)
    ] = 3,
    seed: Annotated[int, typer.Option(help="Of the order of the runs.", rich_help_panel=_HOW)] = 0,
    oversubscribe: Annotated[
        bool,
        typer.Option("--oversubscribe", help="Allow more workers than cores or GPUs.", rich_help_panel=_HOW),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="T",
            help="Compute threads of each worker; else what each has of the cores where there are most.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="core, numa or none, as in samestep run.", rich_help_panel=_HOW)
    ] = None,
    hang_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="After which a run that hangs is ended.", rich_help_panel=_HOW),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="auto, autopilot or native.", rich_help_panel=_SCRIPT)
    ] = None,
    batch_norm: Annotated[str | None, typer.Option(help="global or local.", rich_help_panel=_SCRIPT)] = None,
    split: Annotated[str | None, typer.Option(help="call or loader.", rich_help_panel=_SCRIPT)] = None,
    load: Annotated[
        str | None, typer.Option(help="auto, shared or replicated.", rich_help_panel=_SCRIPT)
    ] = None,
    random: Annotated[str | None, typer.Option(help="global or per-worker.", rich_help_panel=_SCRIPT)] = None,
    device: Annotated[str | None, typer.Option(help="auto or cpu.", rich_help_panel=_SCRIPT)] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a serial script.", rich_help_panel=_SCRIPT)
    ] = None,
    worth: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            parser=efficiency,
            help="Say which numbers reach this efficiency, such as 0.7 or 70%.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the study; else studies/NAME-TIME.", rich_help_panel=_RESULTS
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the study as JSON.", rich_help_panel=_RESULTS)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs, in their order.", rich_help_panel=_RESULTS)
    ] = False,
    submit: Annotated[
        str | None,
        typer.Option(
            metavar="slurm", help="Make each number of workers a job; see below.", rich_help_panel=_JOBS
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Print the jobs' numbers; do not follow them.", rich_help_panel=_JOBS),
    ] = False,
    collect: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with a study that was submitted.", rich_help_panel=_JOBS),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(metavar="K", help="Workers on a node at most; else all.", rich_help_panel=_JOBS),
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
    """Measure a training on several numbers of workers: speedup, efficiency, and where the rest goes.

    Each run is a command of its own, stopped after some steps; nothing that it writes is kept. Exit code 0:
    every number of workers was measured; 1: some run failed, and the others are reported.
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
    if collect is not None:
        refuse_beside_collect(context)
    if submit is None:
        refuse_stray({**site, **per_node.flags(), "detach": detach})
    if collect is not None:
        return _told(collected_from(collect, target, bar=worth), collect, as_json=as_json)
    if target is None:
        raise UsageError("what is to be measured? Give a script or a recipe.")
    kind = kind_of(target, arguments or [], module=module, mode=mode)
    refuse_ambiguous(target, kind, sys.argv, {name for one in context.command.params for name in one.opts})
    numbers = _numbers(workers)
    _check_wait(hang_timeout)
    own = {
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
    refuse_misplaced(target, own, compare or [], kind)
    variants = compared(compare or [], kind)
    each = compared_threads(variants)
    if submit is None:
        where: Where | Jobs = here(numbers, threads=threads, compared=each, on_cpu=device == "cpu")
    else:
        where = in_jobs(submit, max(numbers), site, per_node=per_node, threads=threads, detach=detach)
    if not oversubscribe:
        refuse_too_many(numbers, places=where.places, what=where.what)
    request = Request(
        target=target,
        kind=kind,
        arguments=tuple(arguments or ()),
        workers=numbers,
        scaling=scaling_of(scaling),
        batch=batch_of(target, arguments or [], scaling) if kind == "recipe" else None,
        flags=tuple(as_arguments({**own, "threads": None if each else where.threads})),
        variants=variants,
        steps=steps,
        warm_up=warm_up,
        repeats=repeats,
        seed=seed,
        per_node=where.per_node,
        folder=out or default_folder(target),
    )
    trials = plan(request)
    if kind == "recipe":
        refuse_wrong_flags(trials)
    frame = Frame(request=request, bar=worth, places=where.places)
    refuse_taken(request.folder)
    if dry_run:
        print(where.shown(frame, trials))
        return 0
    if kind == "script":
        frame = replace(frame, source=source_of(Path(target)))
    return _told(where.made(frame, trials), request.folder, as_json=as_json)


def _told(made: tuple[Study, int] | None, folder: Path, *, as_json: bool) -> int:
    """Print the study in `folder`, if there is one by now, and return the exit code."""
    if made is None:
        return 0
    study, code = made
    if as_json:
        print(json_line(as_json_of(study)).rstrip())
    else:
        print(study_text(seen_from_here(study, folder), terminal_width()))
    return code


def _check_wait(seconds: float | None) -> None:
    if seconds is not None and not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"--hang-timeout {seconds:g} is no time to wait: give seconds, or 0 for never.")


def _numbers(text: str) -> tuple[int, ...]:
    """Read ``-n``."""
    try:
        numbers = tuple(sorted(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"-n {text!r} is no list of numbers of workers, such as 1,2,4.") from None
    if numbers[0] < 1:
        raise UsageError(f"-n {text}: there must be at least one worker.")
    twice = next((one for one, other in pairwise(numbers) if one == other), None)
    if twice is not None:
        raise UsageError(f"-n {text}: {twice} is there twice. How often each runs, --repeats says.")
    return numbers
