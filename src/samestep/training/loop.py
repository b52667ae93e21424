"""The exact loop: epochs of steps, each followed by an evaluation that counts every sample once."""

import time
from collections.abc import Callable

from torch import nn

from samestep.checkpoint.digest import weights_sha256
from samestep.data.image_set import ImageSet
from samestep.data.loader import Loader
from samestep.measure.clock import step_clock
from samestep.replicas.replicate import Replicas, replicate
from samestep.sharding.position import Position
from samestep.training.evaluate import Score, evaluate
from samestep.training.journal import Journal
from samestep.training.progress import Display
from samestep.training.result import Result
from samestep.training.run_folder import Sink
from samestep.training.settings import Settings
from samestep.training.setup import build_model, build_optimizer, build_schedule
from samestep.training.step import Step
from samestep.world.world import World

EVALUATION_BATCH = 1000
"""Samples per evaluation step, over all workers; it changes no result."""


class Training:
    """One training of one model, seen from one rank.

    Args:
        make_model: returns the untrained network; its weights are drawn under the settings' seed.
        train_set: what to learn from.
        test_set: what to be judged by.
        settings: the same on every rank.
        world: the ranks that share the work.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        *,
        train_set: ImageSet,
        test_set: ImageSet,
        settings: Settings,
        world: World,
    ) -> None:
        settings.check_workers(world.place.size)
        self.settings = settings
        self.world = world
        self.test_total = len(test_set)
        self.batches = Loader(
            train_set.to(world.device),
            batch_size=settings.batch_size,
            place=world.place,
            dtype=settings.torch_dtype,
        )
        self.test_batches = Loader(
            test_set.to(world.device),
            batch_size=max(EVALUATION_BATCH, world.place.size),
            place=world.place,
            dtype=settings.torch_dtype,
            shuffle=False,
        )
        self.steps = settings.epochs * len(self.batches)
        self.model = build_model(make_model, settings, world.device)
        self.optimizer = build_optimizer(self.model, settings)
        self.clock = step_clock(world.device)
        self.journal = Journal(world, self.clock)

    def run(self, sink: Sink, display: Display) -> Result:
        """Train to the end; rows, checkpoint and result go to `sink`, what a person sees to `display`."""
        settings, world = self.settings, self.world
        replicas = replicate(self.model, world, sync=settings.sync, batch_norm=settings.batch_norm)
        try:
            seconds, score = self._epochs(self._step(replicas), sink, display)
            replicas.check()
        finally:
            replicas.detach()
        result = Result(
            accuracy=score.accuracy,
            correct=score.correct,
            total=score.total,
            loss=score.loss,
            epochs=settings.epochs,
            steps=self.journal.steps,
            seconds=seconds,
            samples_per_second=self.journal.samples / seconds,
            weights_sha256=weights_sha256(self.model.state_dict()),
            world_size=world.place.size,
            step_s=self.journal.median_phases(),
        )
        sink.finish(self.model, result, Position(settings.seed, settings.epochs))
        return result

    def _step(self, replicas: Replicas) -> Step:
        seen = replicas.when_exchange_begins(lambda: self.clock.mark("backward"))
        return Step(
            model=self.model,
            optimizer=self.optimizer,
            schedule=build_schedule(self.optimizer, self.settings, steps=self.steps),
            clock=self.clock,
            after_gradients="exposed_sync" if seen else "backward",
        )

    def _epochs(self, step: Step, sink: Sink, display: Display) -> tuple[float, Score]:
        """Train all epochs; return the seconds spent in steps and the score after the last."""
        seconds = 0.0
        with display:
            for epoch in range(self.settings.epochs):
                position = Position(self.settings.seed, epoch)
                began = time.perf_counter()
                loss = self._epoch(step, position, sink, display)
                lasted = time.perf_counter() - began
                seconds += lasted
                score = evaluate(
                    self.model, self.test_batches.epoch(), total=self.test_total, world=self.world
                )
                display.epoch_done(epoch + 1, score=score, loss=loss, seconds=lasted)
        return seconds, score

    def _epoch(self, step: Step, position: Position, sink: Sink, display: Display) -> float:
        """Train from `position` to the end of its epoch; return the mean loss of a sample."""
        self.clock.start()
        for batch in self.batches.epoch(position):
            lr = step.lr
            loss = step(batch)
            if self.journal.note(epoch=position.epoch + 1, count=batch.global_count, lr=lr, loss=loss):
                self._look(sink, display)
        self._look(sink, display)
        return self.journal.take_mean_loss()

    def _look(self, sink: Sink, display: Display) -> None:
        """Turn the steps since the last look into rows, and show the newest."""
        rows = self.journal.flush()
        if rows:
            sink.steps(rows)
            display.advance(step=self.journal.steps, loss=rows[-1]["loss"])
        self.clock.start()  # what this took is no part of the next step
