"""``samestep train``: a built-in recipe on N workers."""

import os
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samestep.base import env
from samestep.base.errors import Error, PutOff, UsageError
from samestep.base.record import json_line
from samestep.cli.job_flags import Meeting, refuse_unused
from samestep.cli.job_flags import clocking as clocking_of
from samestep.cli.measured import refuse_unmeasured
from samestep.cli.outside import went_in
from samestep.cli.running import Decision, act, decide, headline, starts_all, tell, watch_here, watched
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments, given, with_flags_of
from samestep.cli.shares import bind_worker, bound
from samestep.launch.accelerators import accelerator_count
from samestep.launch.job import Job, Program
from samestep.launch.plan import Spawn
from samestep.measure.clock_file import ClockOptions
from samestep.report.run_page import write_report
from samestep.training.conduct import RunOptions
from samestep.training.run_folder import RunFolder
from samestep.training.settings import Settings
from samestep.world.compute_threads import asked_threads
from samestep.world.launchers import SAMESTEP

if TYPE_CHECKING:
    from samestep.recipes.order import ResolvedConfig
    from samestep.recipes.request import Request
    from samestep.training.result import Result
    from samestep.world.world import World

FINISH_S = 300.0
"""How long workers that were asked to stop may take for their step and a checkpoint."""

_WHAT, _DATA, _RESULTS = "What", "Data", "Results"


@with_secret_file
@with_flags_of(Settings, RunOptions)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="digits (comes along), mnist, fashion-mnist, cifar10, synthetic."
        ),
    ] = None,
    *,
    workers: Annotated[int | None, typer.Option("-n", metavar="N", help="Workers in total.")] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="T", help="Compute threads of each worker; by default its share.")
    ] = None,
    bind: Annotated[
        str, typer.Option(help="core: each worker has cores of its own, near its GPU; numa: a node; none.")
    ] = "none",
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="K", help="How often all workers go on from the last checkpoint after one failed."
        ),
    ] = 0,
    hang_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long a worker may wait for one that does not come; 0 is without end."
        ),
    ] = 60.0,
    fast: Annotated[
        bool | None,
        typer.Option("--fast", help="The same task in a fraction of the time.", rich_help_panel=_WHAT),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Settings from a TOML file; flags go before.", rich_help_panel=_WHAT
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="convnet, resnet9, resnet18 ... resnet152.", rich_help_panel=_WHAT),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the run in this folder, on any -n; with a RECIPE, begin it if there is none.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    eval_only: Annotated[
        bool,
        typer.Option(
            "--eval-only", help="Score the weights of --from; train nothing.", rich_help_panel=_WHAT
        ),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="For --eval-only: anybody's checkpoint.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    batch_per_worker: Annotated[
        int | None,
        typer.Option(
            metavar="B", help="Batch of each worker: N times B is another training.", rich_help_panel=_WHAT
        ),
    ] = None,
    lr_scale: Annotated[
        str | None,
        typer.Option(help="With --batch-per-worker: none, linear, sqrt.", rich_help_panel=_WHAT),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another data set; see samestep data list.", rich_help_panel=_DATA),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set.", rich_help_panel=_DATA)
    ] = None,
    subset: Annotated[
        int | None, typer.Option(metavar="K", help="Train on the first K samples.", rich_help_panel=_DATA)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder; else runs/RECIPE-TIME.", rich_help_panel=_RESULTS),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_RESULTS)
    ] = False,
    clock: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write down each worker's steps there: how long each took, and each part of it.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    clock_steps: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="End the training after so many clocked steps.", rich_help_panel=_RESULTS
        ),
    ] = None,
    clock_warm_up: Annotated[
        int,
        typer.Option(metavar="W", help="Steps before the first that is clocked.", rich_help_panel=_RESULTS),
    ] = 5,
    **settings: Any,
) -> None:
    """Train a built-in recipe on N workers, with the result of one.

    Everything is checked before a worker starts. Under srun, mpirun or torchrun the launcher's tasks are
    the workers; elsewhere -n of them start here. SIGTERM and SIGUSR1 (--stop-signal) finish the step, write
    a checkpoint and end with exit code 75; --resume goes on from it. So do the workers by themselves, up to
    --max-restarts times, after one has failed.
    """
    from samestep.recipes.order import check_compiler, resolve
    from samestep.recipes.request import Request, after_failure, configuration

    if eval_only != (weights is not None):
        raise UsageError(
            "--eval-only and --from CHECKPOINT go together: what to score, and to train nothing."
        )
    clocking = clocking_of(clock, steps=clock_steps, warm_up=clock_warm_up)
    if clocking is not None and eval_only:
        raise UsageError("--clock takes down the steps of a training, and --eval-only trains nothing.")
    request = Request(
        recipe=recipe,
        fast=fast,
        data=data,
        model=model,
        data_dir=data_dir,
        subset=subset,
        changes=given(settings, Settings, RunOptions),
        config=config,
        batch_per_worker=batch_per_worker,
        lr_scale=lr_scale,
        resume=resume,
        weights=weights,
        out=out,
    )
    environment = env.snapshot()
    if env.integer(environment, "TORCHELASTIC_RESTART_COUNT"):
        request = after_failure(request)
    if threads is None and configuration(request)[0].get("exact") and asked_threads(environment) is None:
        threads = 1  # as everywhere else, so that the bits are the same
    job = Job(
        program=Program(target="samestep", kind="module"),
        workers=workers,
        max_restarts=max_restarts,
        patience_s=FINISH_S,
    )
    went_in(job)
    decision = decide(job, mode="native", threads=threads, environment=environment)
    decision = watched(bound(decision, bind), hang_timeout=hang_timeout, sanitize=False)
    refuse_unused(job, decision.plan, Meeting(), launcher=decision.found.launcher)
    _leave_if_finished(request, decision, as_json=as_json)
    resolved = resolve(request, workers=decision.size)
    if (
        resolved.settings.compile and not accelerator_count()
    ):  # else the workers look: devices are theirs to open
        check_compiler(resolved)
    if clocking is not None and starts_all(decision):
        clocking.refuse_used()
    if isinstance(decision.plan, Spawn) and (decision.size > 1 or max_restarts):
        raise typer.Exit(_start(decision, request, resolved, clocking, as_json=as_json))
    work = partial(_work, decision, resolved, clocking, threads=threads, as_json=as_json)
    if decision.found.launcher == SAMESTEP.name:  # which watches its workers
        work()
    else:
        watch_here(decision, work)


def _leave_if_finished(request: "Request", decision: Decision, *, as_json: bool) -> None:
    """End here if the run has: whoever resumes it again, a chain of jobs or a restart, need not know."""
    from samestep.recipes.request import configuration

    folder = request.resume
    if folder is None or not RunFolder.has_finished(folder) or not configuration(request)[1]:
        return
    if decision.speaks:
        tell(f"{folder}: that run has finished, and nothing is left to do; see its result.json.")
        if as_json:
            print(json_line(RunFolder.read_result(folder)).rstrip())
    raise typer.Exit


def _start(
    decision: Decision,
    request: "Request",
    resolved: "ResolvedConfig",
    clocking: ClockOptions | None,
    *,
    as_json: bool,
) -> int:
    """Start the workers, each with all that was asked for and the folder settled; return the exit code."""
    if resolved.weights is None:
        from samestep.recipes.cook import prepare

        refuse_unmeasured(decision, resolved.settings.algorithm)
        if isinstance(decision.plan, Spawn) and not decision.plan.nodes.rank:  # rank 0 writes, so its node
            prepare(resolved)
        request = replace(request, out=None if request.resume else resolved.out)
    if decision.speaks:
        _tell_what_it_is(decision, resolved)
        tell(headline(decision))
    program = replace(decision.job.program, args=_arguments(request, clocking, as_json=as_json))
    try:
        code, why = act(replace(decision, job=replace(decision.job, program=program))), ""
    except Error as error:
        if not _has_finished(resolved):
            raise
        code, why = error.exit_code, str(error).strip().partition("\n")[0]
    if code and _has_finished(resolved):
        tell(
            f"the training has finished, see {resolved.out / 'result.json'}; after that a worker failed. "
            f"{why}"
        )
        return 0
    return code


def _has_finished(resolved: "ResolvedConfig") -> bool:
    return resolved.weights is None and RunFolder.has_finished(resolved.out)


def _tell_what_it_is(decision: Decision, resolved: "ResolvedConfig") -> None:
    settings, workers = resolved.settings, decision.size
    for said in (resolved.label, settings.advice(workers), settings.about_exact(workers)):
        if said is not None:
            tell(said)


def _work(
    decision: Decision,
    resolved: "ResolvedConfig",
    clocking: ClockOptions | None,
    *,
    threads: int | None,
    as_json: bool,
) -> None:
    """Be a worker, or the only one."""
    from samestep.recipes.cook import score
    from samestep.recipes.order import broadcast_resolved, check_compiler
    from samestep.world.join import join

    bind_worker(decision, decision.found.place)
    finished = False
    try:
        with join(threads=threads) as world:
            check_compiler(resolved, world.device)
            resolved = broadcast_resolved(resolved, world)
            if decision.found.launcher != SAMESTEP.name:  # which has told it
                world.on_main(lambda: _tell_what_it_is(decision, resolved))
            if resolved.weights is not None:
                found = score(world, resolved)
                world.print(json_line(found.as_dict()).rstrip() if as_json else found.summary())
                return
            result = _train(world, resolved, clocking)
            finished = result is not None
            if result is not None and world.place.is_main:
                _report(result, resolved.out, as_json=as_json)
    except KeyboardInterrupt:
        if decision.size == 1:  # of several, the launcher says it
            tell(f"ended by signal {SIGINT:d}.")
        raise
    except PutOff as stopped:
        if world.place.is_main:
            tell(f"{stopped}. Go on with: samestep train --resume {resolved.out}")
        raise typer.Exit(stopped.exit_code) from None
    except Exception as error:
        if not finished:
            raise
        tell(f"the training has finished; after that this worker failed: {_line(error)}")


def _train(world: "World", resolved: "ResolvedConfig", clocking: ClockOptions | None) -> "Result | None":
    """Train; return the result, or None where the training was left once enough steps were clocked."""
    from samestep.recipes.clocked import clocked
    from samestep.recipes.cook import run_recipe

    if clocking is None:
        return run_recipe(world, resolved)
    samples = len(resolved.train_set)
    config = resolved.training() | {"samples": samples}
    train = partial(run_recipe, world, resolved)
    result = clocked(train, world, clocking, samples_per_epoch=samples, config=config, report=tell)
    if result is None and world.place.is_main:
        tell(clocking.stopped_message())
    return result


def _report(result: "Result", folder: Path, *, as_json: bool) -> None:
    """Print what came of a training, and write its page; neither makes a failure of the training."""
    where = f"run folder: {folder}"
    try:
        where += f", as a picture: {write_report(folder)}"
    except Exception as error:  # noqa: BLE001 - the result is on disk, whatever the page meets
        tell(f"the training has finished, and its page cannot be made: {_line(error)}")
    try:
        text = json_line(result.as_dict()).rstrip() if as_json else f"{result.summary()}\n{where}"
        print(text, flush=True)
    except OSError as error:
        tell(f"the training has finished, and its result cannot be printed: {_line(error)}")
        _discard_output()


def _discard_output() -> None:
    """Discard what could not be printed: the interpreter would try again at its end, and fail for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    told = " ".join(str(error).split()) or type(error).__name__
    return told if isinstance(error, Error) else f"{type(error).__name__}: {told}"


def _arguments(request: "Request", clocking: ClockOptions | None, *, as_json: bool) -> tuple[str, ...]:
    """Return the arguments that ask for `request` again."""
    flags = {
        one.name: getattr(request, one.name)
        for one in fields(request)
        if one.name not in ("recipe", "changes", "weights")
    }
    said = as_arguments({**flags, **request.changes})
    if request.weights is not None:
        said += ["--eval-only", f"--from={request.weights}"]
    if clocking is not None:
        steps, warm_up = clocking.steps, clocking.warm_up
        said += as_arguments({"clock": clocking.folder, "clock_steps": steps, "clock_warm_up": warm_up})
    return ("train", *([request.recipe] if request.recipe else []), *said, *(["--json"] if as_json else []))
