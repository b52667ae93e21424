"""Implements ``samestep train``, which trains a built-in recipe on N workers."""

import shlex
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samestep.base import env
from samestep.base.console import discard_output, inform, log
from samestep.base.errors import INTERRUPTED, Error, Preempted
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.record import json_line
from samestep.base.signals import ended_by_interrupt
from samestep.cli.failures import exit_with
from samestep.cli.options import launch, results
from samestep.cli.options.declare import (
    DATA_PANEL,
    RESULTS_PANEL,
    TRAINING_PANEL,
    as_arguments,
    completing,
    given_settings,
    grouped,
    option,
    switch,
    with_flags_of,
)
from samestep.cli.options.nodes import Rendezvous, refuse_unused
from samestep.launch.job import Job
from samestep.launch.plan import Spawn
from samestep.launchers.processors import asked_threads
from samestep.launchers.registry import SAMESTEP
from samestep.observe.clock_file import ClockOptions
from samestep.report.page import write_figures
from samestep.report.read_run import read_run
from samestep.report.run_page import charts, write_report
from samestep.run.decision import Decision, with_checks
from samestep.run.execution import OWN_PROGRAM, bind_worker, decide_own, run_monitored, start_own
from samestep.training.output.run_folder import RunFolder
from samestep.training.recipes.registry import RECIPES
from samestep.training.recipes.request import LR_SCALES
from samestep.training.settings import RunOptions, Settings

if TYPE_CHECKING:
    from samestep.ranks.world.protocol import World
    from samestep.training.output.run_folder import Result
    from samestep.training.recipes.request import Request
    from samestep.training.recipes.resolve import ResolvedConfig

FINISH_S = 300.0
"""Seconds that workers have for their step and a checkpoint when they are asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The options of what is trained, and from where to where."""

    fast: Annotated[
        bool | None,
        option("", "Train for the same task in a fraction of the time.", TRAINING_PANEL, "--fast"),
    ] = None
    config: Annotated[
        Path | None, option("FILE", "Settings from a TOML file; flags override them.", TRAINING_PANEL)
    ] = None
    model: Annotated[str | None, results.MODEL] = None
    resume: Annotated[
        Path | None,
        option(
            "DIR",
            "Continue the run in this folder, on any -n. With a RECIPE, start it if there is none.",
            TRAINING_PANEL,
        ),
    ] = None
    eval_only: Annotated[
        bool, switch("Evaluate the weights of --from, without training.", TRAINING_PANEL, "--eval-only")
    ] = False
    weights: Annotated[
        Path | None,
        option(
            "CHECKPOINT",
            "For --eval-only: a checkpoint of samestep, or a file with a state dict.",
            TRAINING_PANEL,
            "--from",
        ),
    ] = None
    batch_per_worker: Annotated[int | None, results.BATCH_PER_WORKER] = None
    lr_scale: Annotated[
        str | None,
        option("", "Learning rate with --batch-per-worker.", TRAINING_PANEL, choices=LR_SCALES),
    ] = None
    data: results.Data = None
    data_dir: results.DataDir = None
    subset: Annotated[int | None, option("K", "Train on the first K samples.", DATA_PANEL)] = None
    out: Annotated[Path | None, option("DIR", "Run folder. Default: runs/RECIPE-TIME.", RESULTS_PANEL)] = None


@grouped
@with_flags_of(Settings, RunOptions)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help=f"One of {', '.join(RECIPES)}; digits is bundled.",
            autocompletion=completing(RECIPES),
        ),
    ] = None,
    *,
    start: launch.WatchedWorkers,
    training: TrainingOptions,
    output: results.Output,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    recording: launch.Clock,
    **settings: Any,
) -> None:
    """Train a built-in recipe on N workers, with the result of one.

    All input is checked before a worker starts. Under srun, mpirun or torchrun the launcher's tasks are the
    workers; otherwise -n of them start here. On SIGTERM and SIGUSR1 (--stop-signal) the workers finish their
    step, write a checkpoint and end with exit code 75; --resume continues from it. After the failure of a
    worker all workers continue from it by themselves, up to --max-restarts times.
    """
    from samestep.training.recipes.request import Request, after_failure, configuration

    with ended_by_interrupt():
        from samestep.training.recipes.resolve import check_compiler, resolve

    flags = asdict(training)
    del flags["eval_only"]  # a request with weights is one
    clocking = recording.checked()
    request = Request(recipe=recipe, changes=given_settings(settings, Settings, RunOptions), **flags)
    environment = env.snapshot()
    if env.integer(environment, "TORCHELASTIC_RESTART_COUNT"):
        request = after_failure(request)
    threads = start.threads
    if threads is None and configuration(request)[0].get("exact") and asked_threads(environment) is None:
        threads = 1  # the same number everywhere gives the same bits
    job = Job(
        program=OWN_PROGRAM, workers=start.workers, max_restarts=start.max_restarts, patience_s=FINISH_S
    )
    decision = with_checks(
        decide_own(job, threads=threads, bind=start.bind),
        hang_timeout=start.hang_timeout,
        oversubscribe=start.oversubscribe,
    )
    refuse_unused(job, decision.plan, Rendezvous(), launcher=decision.detected.launcher)
    if decision.is_main:
        output.check()
    _exit_if_finished(request, decision, as_json=output.as_json)
    resolved = resolve(request, workers=decision.size)
    if resolved.settings.compile and not accelerator_count():  # only workers may open accelerators
        check_compiler(resolved)
    if clocking is not None and decision.starts_all:
        clocking.refuse_used()
    if isinstance(decision.plan, Spawn) and (decision.size > 1 or start.max_restarts):
        exit_with(_start(decision, request, resolved, recording, output), as_json=output.as_json)
    work = partial(_work, decision, resolved, clocking, output, threads=threads)
    run_monitored(decision, work)


def _exit_if_finished(request: "Request", decision: Decision, *, as_json: bool) -> None:
    """Exit with code 0 if the run to resume has finished, so that a chain of jobs or a restart succeeds."""
    from samestep.training.recipes.request import configuration

    folder = request.resume
    if folder is None or not RunFolder.has_finished(folder) or not configuration(request)[1]:
        return
    if decision.is_main:
        log(f"the run in {folder} has finished; see its result.json.")
        if as_json:
            print(json_line(RunFolder.read_result(folder)))
    raise typer.Exit


def _start(
    decision: Decision,
    request: "Request",
    resolved: "ResolvedConfig",
    recording: launch.Clock,
    output: results.Output,
) -> int:
    """Start the workers with the same request and a fixed run folder, and return the exit code."""
    if resolved.weights is None:
        from samestep.training.recipes.resolve import own_folder
        from samestep.training.recipes.run_recipe import prepare

        # Rank 0 writes, so its node prepares the folder.
        if isinstance(decision.plan, Spawn) and not decision.plan.nodes.rank:
            resolved = replace(resolved, out=own_folder(resolved))
            prepare(resolved)
        request = replace(request, out=None if request.resume else resolved.out)
    if decision.is_main:
        _log_settings(decision, resolved)
    try:
        code, why = start_own(decision, _arguments(request, recording, output)), ""
    except Error as error:
        if not _has_finished(resolved):
            raise
        code, why = error.exit_code, str(error).strip().partition("\n")[0]
    if code == INTERRUPTED and (continuation := _continuation(resolved)):
        log(continuation)
    if code and _has_finished(resolved):
        log(f"the training has finished, see {resolved.out / 'result.json'}; then a worker failed. {why}")
        return 0
    return code


def _has_finished(resolved: "ResolvedConfig") -> bool:
    return resolved.weights is None and RunFolder.has_finished(resolved.out)


def _log_settings(decision: Decision, resolved: "ResolvedConfig") -> None:
    settings, workers = resolved.settings, decision.size
    for line in (resolved.label, settings.advice(workers), settings.about_exact(workers)):
        if line is not None:
            inform(line)


def _work(
    decision: Decision,
    resolved: "ResolvedConfig",
    clocking: ClockOptions | None,
    output: results.Output,
    *,
    threads: int | None,
) -> None:
    """Train or evaluate, as one of the workers."""
    from samestep.ranks.world.join import join
    from samestep.training.recipes.resolve import broadcast_resolved, check_compiler
    from samestep.training.recipes.run_recipe import score

    bind_worker(decision, decision.detected.place)
    finished = False
    try:
        with join(threads=threads) as world:
            check_compiler(resolved, world.device)
            resolved = broadcast_resolved(resolved, world)
            if decision.detected.launcher != SAMESTEP.name:  # it has logged them itself
                world.on_main(lambda: _log_settings(decision, resolved))
            if resolved.weights is not None:
                evaluation = score(world, resolved)
                world.print(json_line(evaluation.as_dict()) if output.as_json else evaluation.summary())
                return
            result = _train(world, resolved, clocking)
            finished = result is not None
            if result is not None and world.place.is_main:
                _report(result, resolved.out, output)
    except KeyboardInterrupt:
        if decision.size > 1:  # the launcher logs it
            raise
        raise KeyboardInterrupt(f"ended by signal {SIGINT:d}. {_continuation(resolved)}".rstrip()) from None
    except Preempted as stopped:
        if world.place.is_main:
            log(f"{stopped}. To continue: samestep train --resume {shlex.quote(str(resolved.out))}")
        raise typer.Exit(stopped.exit_code) from None
    except Exception as error:
        if not finished:
            raise
        log(f"the training has finished; then this worker failed: {_line(error)}")


def _continuation(resolved: "ResolvedConfig") -> str:
    """Return the command that continues a training which Ctrl-C has ended; empty if there is nothing yet."""
    if resolved.weights is not None or not (resolved.out / "config.toml").is_file():
        return ""
    return f"To continue from the last checkpoint: samestep train --resume {shlex.quote(str(resolved.out))}"


def _train(world: "World", resolved: "ResolvedConfig", clocking: ClockOptions | None) -> "Result | None":
    """Train, and return the result; None if the training was stopped after ``--clock-steps``."""
    from samestep.training.recipes.run_recipe import clocked, run_recipe

    if clocking is None:
        return run_recipe(world, resolved)
    samples = len(resolved.train_set)
    config = resolved.training() | {"samples": samples}
    train = partial(run_recipe, world, resolved)
    result = clocked(train, world, clocking, samples_per_epoch=samples, config=config, report=log)
    if result is None and world.place.is_main:
        log(clocking.stopped_message())
    return result


def _report(result: "Result", folder: Path, output: results.Output) -> None:
    """Print the result of a training, and write page and figures; an error there does not fail it."""
    where = f"run folder: {folder}"
    try:
        where += f", page: {write_report(folder)}"
        if output.figures is not None:
            inform(write_figures(charts([read_run(folder)]), output.figures))
    except Exception as error:  # noqa: BLE001 - the result is on disk already
        log(f"the training has finished, but not all of its page and figures can be written: {_line(error)}")
    try:
        text = json_line(result.as_dict()) if output.as_json else f"{result.summary()}\n{where}"
        print(text, flush=True)
    except OSError as error:
        log(f"the training has finished, but its result cannot be printed: {_line(error)}")
        discard_output()


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, Error) else f"{type(error).__name__}: {text}"


def _arguments(request: "Request", recording: launch.Clock, output: results.Output) -> tuple[str, ...]:
    """Return the command-line arguments of `request`."""
    flags = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in ("recipe", "changes", "weights")
    }
    words = as_arguments({**flags, **request.changes, "figures": output.figures})
    if request.weights is not None:
        words += ["--eval-only", f"--from={request.weights}"]
    if recording.clock is not None:
        words += as_arguments(asdict(recording))
    words += ["--json"] * output.as_json
    return ("train", *([request.recipe] if request.recipe else []), *words)
