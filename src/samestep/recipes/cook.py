"""Running an order on the ranks of a world."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from samestep.base import env
from samestep.base.last_step import record_step
from samestep.checkpoint.choose import Chosen, is_bare, newest_valid
from samestep.checkpoint.foreign import load_state
from samestep.checkpoint.layout import AVERAGE, MODEL
from samestep.checkpoint.retain import adopt, set_aside_later
from samestep.checkpoint.shared import choose_on_all
from samestep.collectives.by_algorithm import settled
from samestep.collectives.crossovers import AUTO, Crossovers
from samestep.models.registry import build
from samestep.recipes.clocked import DrawnWithin, Loading
from samestep.recipes.order import Order
from samestep.training.evaluate import Score
from samestep.training.keeping import Keeper
from samestep.training.loggers.observed import observed
from samestep.training.loop import Training
from samestep.training.metrics import metrics_of
from samestep.training.precision import machine_has_bf16
from samestep.training.profile import Profiler
from samestep.training.progress import Display, Silent, Spoken
from samestep.training.result import Result
from samestep.training.run_folder import Nowhere, RunFolder, Sink
from samestep.training.run_lock import RESTART_S, RunLock
from samestep.training.stopping import stop_request
from samestep.training.surroundings import Surroundings
from samestep.world.world import World


def prepare(order: Order) -> None:
    """Make the run folder, or show that it can be gone on with; called by one process, before others start.

    Raises:
        UsageError: it cannot be written, is in use, or holds another run, or none that can go on.
        CheckpointError: the run cannot go on: it has checkpoints and none is whole.
    """
    with closing(RunLock(order.out)) as lock:  # rank 0 takes it again
        _open_folder(order, lock)
    if order.resume:
        checkpoints = RunFolder(order.out).checkpoints
        if not is_bare(checkpoints):
            newest_valid(checkpoints)


def cook(world: World, order: Order, loading: Loading | None = None) -> Result:
    """Train on the ranks of `world`; every rank calls this and gets the result.

    Args:
        world: the ranks.
        order: what was ordered.
        loading: returns what batches are drawn within, where somebody wants to know.

    Raises:
        PutOff: a rank was asked to stop; a checkpoint is written.
    """
    record_step(0)
    restarted = env.integer(env.snapshot(), "TORCHELASTIC_RESTART_COUNT")
    lock = RunLock(order.out, wait_s=RESTART_S if restarted else 0.0)
    with stop_request(order.conduct.stop_signal) as stop, closing(lock):
        unlocked = world.on_main(lambda: _open_folder(order, lock))
        order = _settled(world, order)
        training = _training(world, order)
        if loading is not None:
            training.batches = DrawnWithin(training.batches, loading)
        chosen = _go_on(world, order, training) if order.resume else None
        record_step(training.journal.steps)
        sink, display = _outputs(world, order, training, chosen, unlocked=unlocked)
        keeper = Keeper(world, order.conduct, folder=order.out / "checkpoints", tell=display.note)
        profiler = Profiler(
            order.conduct.profile, order.out, world, done=training.journal.steps, total=training.steps
        )
        try:
            around = Surroundings(sink=sink, display=display, keeper=keeper, stop=stop, profiler=profiler)
            return training.run(around)
        finally:
            keeper.close()
            sink.close()


def score(world: World, order: Order) -> Score:
    """Score the weights of a checkpoint on the ranks of `world`; every rank calls this and gets the score.

    Of a run that keeps an average of the weights, that is what is judged, as it was in the run.

    Raises:
        CheckpointError: it cannot be read, or belongs to another model.
    """
    training = _training(world, _settled(world, order))
    model, path = training.learner.evaluated, order.weights
    assert path is not None
    state = world.on_main(lambda: _judged(path, model))
    model.load_state_dict(state)
    return training.evaluate()


def _judged(path: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights that a checkpoint is to be judged by; say so where they are not those that train."""
    chosen = newest_valid(path) if path.is_dir() else None
    if chosen is None or chosen.snapshot.average is None:
        return load_state(path, model)
    Console(stderr=True).print(
        f"{chosen.path} keeps an average of the weights (--ema), which is scored. To score those that were "
        f"trained: --from {chosen.path / MODEL}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return load_state(chosen.path / AVERAGE, model)


def _settled(world: World, order: Order) -> Order:
    """Return the order with nothing left to the machine: rank 0's decides for all."""
    settings = order.settings
    if settings.precision == "auto":
        precision = world.broadcast_object("bf16" if machine_has_bf16(world.device) else "fp32")
        settings = replace(settings, precision=precision)
    if settings.algorithm == AUTO and order.weights is None and world.place.size > 1:
        settings = replace(settings, algorithm=settled(world, AUTO).text)
    return replace(order, settings=settings)


def _training(world: World, order: Order) -> Training:
    train_set = order.train_set
    classes = len(train_set.classes)
    return Training(
        lambda: build(order.model, shape=train_set.shape, classes=classes),
        train_set=train_set,
        test_set=order.test_set,
        settings=order.settings,
        world=world,
        conduct=order.conduct,
        metrics=metrics_of(order.conduct.metric, classes=classes),
    )


def _go_on(world: World, order: Order, training: Training) -> Chosen | None:
    """Let `training` stand where the newest usable checkpoint was taken; rank 0 alone needs its files.

    None where the run was killed before there was one.
    """
    checkpoints = RunFolder(order.out).checkpoints
    chosen = choose_on_all(world, checkpoints, missing_ok=True)
    if chosen is not None:
        training.restore(chosen.snapshot)
    return chosen


def _open_folder(order: Order, lock: RunLock) -> str | None:
    """Make the run folder, or show that it can be gone on with, and lock it; return a warning, if any."""
    check = RunFolder.reopen if order.resume else RunFolder.prepare
    check(order.out)
    unlocked = lock.take()
    check(order.out)  # another process may have written to it before it was locked
    return unlocked


def _outputs(
    world: World, order: Order, training: Training, chosen: Chosen | None, *, unlocked: str | None
) -> tuple[Sink, Display]:
    """Return where results and progress go: somewhere on rank 0, nowhere on the others.

    Raises:
        Error: what belongs there cannot be written; on every rank.
    """
    opened: list[tuple[Sink, Display]] = []

    def open_here() -> None:
        display = Spoken(
            steps=training.steps,
            epochs=order.settings.epochs,
            console=Console(stderr=True),
            per_rank=order.conduct.per_rank,
        )
        folder = RunFolder(order.out, display.note)
        if not order.resume:
            folder.write_config(order.config())
        alone = _put_in_order(folder.checkpoints, training, chosen) if order.resume else []
        warnings = [*alone, *([] if unlocked is None else [unlocked])]
        for line in [*_algorithms(order), *_went_on(order, training, chosen), *warnings]:
            display.note(line)
        folder.begin(_session(world, training, chosen))
        sink = observed(folder, order.conduct.logger, order.config(), tell=display.note)
        opened.append((sink, display))

    world.on_main(open_here)
    return next(iter(opened), (Nowhere(), Silent()))


def _put_in_order(checkpoints: Path, training: Training, chosen: Chosen | None) -> list[str]:
    """Leave no checkpoint after the one that the run goes on from; return what was left alone."""
    if chosen is not None:
        adopt(chosen.path)
    _, alone = set_aside_later(checkpoints, than=training.journal.steps)
    return [] if alone is None else [alone]


def _algorithms(order: Order) -> list[str]:
    """Return what carries the gradients, where the user has a say in it."""
    algorithm = order.settings.algorithm
    if algorithm is None or algorithm == AUTO:  # one worker exchanges nothing
        return []
    return [f"gradients: all-reduce by {Crossovers.parse(algorithm).describe()}"]


def _went_on(order: Order, training: Training, chosen: Chosen | None) -> list[str]:
    if not order.resume:
        return []
    if chosen is None:
        return [f"{order.out} has no checkpoint yet: it begins anew"]
    refused = [f"not used: {reason}" for _, reason in chosen.refused]
    if training.uncompared:
        refused.append(
            f"not compared, because the version that wrote {chosen.path.name} did not store it: "
            f"{', '.join(training.uncompared)}. Where it is another than in the beginning, so are the bits"
        )
    return [*refused, f"goes on from {chosen.path.name}, step {training.journal.steps} of {training.steps}"]


def _session(world: World, training: Training, chosen: Chosen | None) -> dict[str, object]:
    """Return what this start of the run ran on."""
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
