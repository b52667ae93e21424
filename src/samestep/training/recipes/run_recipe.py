"""Trains a resolved recipe, perhaps under the step clock, or scores a checkpoint, on the ranks of a world."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from torch import nn

from samestep.base import env
from samestep.base.errors import Error
from samestep.base.worker_records import record_step
from samestep.observe.clock_file import ClockFile, ClockOptions, Config
from samestep.observe.step_clock import ScriptClock
from samestep.parallel.sharding import Position
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.newest import (
    SelectedCheckpoint,
    choose_on_all,
    is_bare,
    newest_valid,
    set_aside_later,
)
from samestep.training.checkpoint.scripts import load_weights
from samestep.training.checkpoint.snapshot import AVERAGE, MODEL
from samestep.training.loop.evaluate import Score
from samestep.training.loop.metrics import metrics_of
from samestep.training.loop.precision import machine_has_bf16
from samestep.training.loop.progress import ConsoleDisplay, Display
from samestep.training.loop.step import LocalBatch, LocalBatches
from samestep.training.loop.training_loop import Callbacks, Training, stop_request
from samestep.training.networks import build
from samestep.training.output.loggers import with_loggers
from samestep.training.output.profile import Profiler
from samestep.training.output.run_folder import RESTART_S, Result, RunFolder, RunLock, Sink
from samestep.training.recipes.resolve import ResolvedConfig

Loading: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Returns the context in which a batch is drawn."""


class StepLimitReached(BaseException):
    """The requested number of steps is clocked; raised on all ranks after the same step."""


def clocked(
    train: Callable[[Loading], Result],
    world: World,
    clocking: ClockOptions,
    *,
    samples_per_epoch: int,
    config: Config,
    report: Callable[[str], None],
) -> Result | None:
    """Train, and clock the steps of this rank.

    The argument of `train` is the context of each batch, because the clock does not observe the loaders of
    recipes, which are not torch's. `report` receives one line if steps of a finished training could not be
    written.

    Returns:
        the result; None if the training ended at the requested number of steps.

    Raises:
        Error: this rank's file cannot be made or exists already, or the requested steps were not written.
    """
    file = ClockFile(clocking, world.place, "recipe", config=config)
    clock = ScriptClock(file, clocking, stop=_stop, samples_per_epoch=samples_per_epoch)
    try:
        with clock.attached():
            result = train(lambda: clock.loading() or nullcontext())
    except StepLimitReached:
        file.check()
        return None
    except BaseException as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise
    try:
        clock.end("end")
        file.check()
    except (Error, OSError) as error:
        report(str(error))
    return result


def _stop() -> None:
    raise StepLimitReached


class BatchesInContext:
    """Epochs of local batches, each drawn within the context that `loading` returns."""

    def __init__(self, batches: LocalBatches, loading: Loading) -> None:
        self._batches, self._loading = batches, loading

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, position: Position | None = None) -> Iterator[LocalBatch]:
        """See `LocalBatches.epoch`."""
        batches = iter(self._batches.epoch(position))
        while True:
            with self._loading():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def prepare(resolved: ResolvedConfig) -> None:
    """Make the run folder, or check that its run can be resumed; called by one process before ranks start.

    Raises:
        UsageError: it cannot be written, is in use, or its run cannot be started or resumed.
        CheckpointError: the run cannot be resumed, because all its checkpoints are damaged.
    """
    with closing(RunLock(resolved.out)) as lock:  # released for rank 0
        _open_folder(resolved, lock)
    if resolved.resume:
        checkpoints = RunFolder(resolved.out).checkpoints
        if not is_bare(checkpoints):
            newest_valid(checkpoints)


def run_recipe(world: World, resolved: ResolvedConfig, loading: Loading | None = None) -> Result:
    """Train on the ranks of `world`; called by every rank, and returns the result on every rank.

    `loading` returns the context in which a batch is drawn, if batches are timed.

    Raises:
        Preempted: a rank received a stop signal; a checkpoint is written.
    """
    record_step(0)
    restarted = env.integer(env.snapshot(), "TORCHELASTIC_RESTART_COUNT")
    lock = RunLock(resolved.out, wait_s=RESTART_S if restarted else 0.0)
    with stop_request(resolved.options.stop_signal) as stop, closing(lock):
        unlocked = world.on_main(lambda: _open_folder(resolved, lock))
        resolved = _without_auto(world, resolved)
        training = _training(world, resolved)
        if loading is not None:
            training.batches = BatchesInContext(training.batches, loading)
        chosen = _restore(world, resolved, training) if resolved.resume else None
        record_step(training.journal.steps)
        sink, display = _outputs(world, resolved, training, chosen, unlocked=unlocked)
        checkpoints = CheckpointManager(
            world, resolved.options, folder=resolved.out / "checkpoints", report=display.note
        )
        profiler = Profiler(
            resolved.options.profile, resolved.out, world, done=training.journal.steps, total=training.steps
        )
        try:
            callbacks = Callbacks(
                sink=sink, display=display, checkpoints=checkpoints, stop=stop, profiler=profiler
            )
            return training.run(callbacks)
        finally:
            checkpoints.close()
            sink.close()


def score(world: World, resolved: ResolvedConfig) -> Score:
    """Score the weights of a checkpoint on the ranks of `world`; called by every rank.

    If the checkpoint has averaged weights (``--ema``), they are scored, as in the run.

    Raises:
        CheckpointError: it cannot be read, or belongs to another model.
    """
    training = _training(world, _without_auto(world, resolved))
    model, path = training.learner.evaluated, resolved.weights
    assert path is not None
    state = world.on_main(lambda: _scored_weights(path, model))
    model.load_state_dict(state)
    return training.evaluate()


def _scored_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights to score into `model`; print a line if they are the averaged ones."""
    chosen = newest_valid(path) if path.is_dir() else None
    if chosen is None or chosen.snapshot.average is None:
        return load_weights(path, model)
    Console(stderr=True).print(
        f"{chosen.path} has averaged weights (--ema), which are scored. Score the trained weights with "
        f"--from {chosen.path / MODEL}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return load_weights(chosen.path / AVERAGE, model)


def _without_auto(world: World, resolved: ResolvedConfig) -> ResolvedConfig:
    """Replace ``auto`` settings by rank 0's choice, on all ranks."""
    settings = resolved.settings
    if settings.precision == "auto":
        precision = world.broadcast_object("bf16" if machine_has_bf16(world.device) else "fp32")
        settings = replace(settings, precision=precision)
    return replace(resolved, settings=settings)


def _training(world: World, resolved: ResolvedConfig) -> Training:
    train_set = resolved.train_set
    classes = len(train_set.classes)
    return Training(
        lambda: build(resolved.model, shape=train_set.shape, classes=classes),
        train_set=train_set,
        test_set=resolved.test_set,
        settings=resolved.settings,
        world=world,
        options=resolved.options,
        metrics=metrics_of(resolved.options.metric, classes=classes),
    )


def _restore(world: World, resolved: ResolvedConfig, training: Training) -> SelectedCheckpoint | None:
    """Restore `training` from the newest usable checkpoint; only rank 0 needs its files.

    Return the checkpoint; None if the run was killed before its first one.
    """
    checkpoints = RunFolder(resolved.out).checkpoints
    chosen = choose_on_all(world, checkpoints, missing_ok=True)
    if chosen is not None:
        training.restore(chosen.snapshot)
    return chosen


def _open_folder(resolved: ResolvedConfig, lock: RunLock) -> str | None:
    """Make the run folder, or check that its run can be resumed, and lock it; return a warning or None."""
    check = RunFolder.reopen if resolved.resume else RunFolder.prepare
    check(resolved.out)
    unlocked = lock.take()
    check(resolved.out)  # again, because another process can have written to it before the lock
    return unlocked


def _outputs(
    world: World,
    resolved: ResolvedConfig,
    training: Training,
    chosen: SelectedCheckpoint | None,
    *,
    unlocked: str | None,
) -> tuple[Sink, Display]:
    """Return the sink and the display of this rank; on other ranks than 0 they do nothing.

    Raises:
        Error: the run folder cannot be written; on every rank.
    """
    opened: list[tuple[Sink, Display]] = []

    def open_here() -> None:
        display = ConsoleDisplay(
            steps=training.steps,
            epochs=resolved.settings.epochs,
            console=Console(stderr=True),
            per_rank=resolved.options.per_rank,
            print_every=resolved.options.print_every,
        )
        folder = RunFolder(resolved.out, display.note)
        if not resolved.resume:
            folder.write_config(resolved.config())
        skipped = None
        if resolved.resume:
            _, skipped = set_aside_later(folder.checkpoints, than=training.journal.steps)
        warnings = [line for line in (skipped, unlocked) if line is not None]
        for line in [*_resume_lines(resolved, training, chosen), *warnings]:
            display.note(line)
        folder.begin(_session(world, training, chosen), evaluates=training.begins_with_evaluation)
        sink = with_loggers(folder, resolved.options.logger, resolved.config(), report=display.note)
        opened.append((sink, display))

    world.on_main(open_here)
    return next(iter(opened), (Sink(), Display()))


def _resume_lines(
    resolved: ResolvedConfig, training: Training, chosen: SelectedCheckpoint | None
) -> list[str]:
    if not resolved.resume:
        return []
    if chosen is None:
        return [f"{resolved.out} has no checkpoint yet: the run starts from the beginning"]
    refused = [f"not used: {reason}" for _, reason in chosen.refused]
    if training.uncompared:
        refused.append(
            f"not compared, because {chosen.path.name} does not record it: {', '.join(training.uncompared)}. "
            "If it has changed since the start of the run, the bits differ"
        )
    return [*refused, f"resumes from {chosen.path.name}, step {training.journal.steps} of {training.steps}"]


def _session(world: World, training: Training, chosen: SelectedCheckpoint | None) -> dict[str, object]:
    """Return the record of this start of the run: its ranks, device and launcher."""
    place = world.place
    return {
        "step": training.journal.steps,
        "checkpoint": None if chosen is None else chosen.path.name,
        "world_size": place.size,
        "nodes": place.nodes,
        "launcher": place.launcher,
        "device": _device_name(world.device),
        "backend": type(world).__name__,
        "threads": torch.get_num_threads(),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type
