"""The exact loop: epochs of steps, evaluations that count every sample once, checkpoints between steps."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

from torch import nn

from samestep.base.errors import CheckpointError, Error, PutOff
from samestep.base.last_step import record_step
from samestep.checkpoint.digest import weights_sha256
from samestep.checkpoint.random_state import check_random_states, restore_random_state
from samestep.checkpoint.snapshot import Snapshot
from samestep.data.augment import parse_augment
from samestep.data.image_set import Images
from samestep.data.loading import Draw, batches_of
from samestep.exact.identity import check_go_on, identity
from samestep.measure.clock import OTHER, step_clock
from samestep.sharding.position import Position
from samestep.training.conduct import Conduct
from samestep.training.evaluate import Interrupted, Metrics, Score, evaluate
from samestep.training.journal import Journal
from samestep.training.keeping import Moment
from samestep.training.learner import Learner
from samestep.training.parallel import in_step, training_batches
from samestep.training.precision import Precision
from samestep.training.result import Result
from samestep.training.settings import Settings
from samestep.training.standing import Extent, check_standing
from samestep.training.step import Step
from samestep.training.stopwatch import Stopwatch
from samestep.training.surroundings import Surroundings
from samestep.world.world import World

EVALUATION_BATCH = 1000
"""Samples per evaluation step at most, over all workers."""
_STATE = frozenset(
    {"seed", "epoch", "samples", "step", "samples_total", "loss_sum", "loss_count", "seconds", "best"}
)
"""What a checkpoint says of where a training stands, since the first version."""


def evaluation_batch(settings: Settings, workers: int) -> int:
    """Return the samples per evaluation step, over all workers; it changes no result.

    Twice a training step's need no more memory than that did: nothing is kept for a backward.
    """
    return max(workers, min(EVALUATION_BATCH, 2 * settings.batch_size // settings.accumulate))


class Training:
    """One training of one model, seen from one rank.

    Args:
        make_model: returns the untrained network; its weights are drawn under the settings' seed.
        train_set: what to learn from.
        test_set: what to be judged by.
        settings: the same on every rank.
        world: the ranks that share the work.
        conduct: how it is watched and kept; the same on every rank.
        metrics: other figures to evaluate.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        *,
        train_set: Images,
        test_set: Images,
        settings: Settings,
        world: World,
        conduct: Conduct | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        settings.check_workers(world.place.size)
        self.settings, self.world, self.conduct = settings, world, conduct or Conduct()
        self.metrics = metrics
        dtype = Precision.of(settings.precision, world.device).images
        learnt = Draw(
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            augment=parse_augment(settings.augment),
            dtype=dtype,
        )
        scored = Draw(batch_size=evaluation_batch(settings, world.place.size), shuffle=False, dtype=dtype)
        workers = self.conduct.loader_workers
        self.batches = training_batches(train_set, learnt, settings, world, workers=workers)
        self.test_batches = batches_of(
            test_set, scored, place=world.place, device=world.device, workers=workers
        )
        self.test_total = len(test_set)
        self.extent = Extent(settings, len(train_set))
        self.steps = settings.epochs * len(self.batches)
        self.learner = Learner(
            make_model,
            settings,
            device=world.device,
            workers=1 if settings.exact else world.place.size,
            steps_per_epoch=len(self.batches),
        )
        self.clock = step_clock(world.device)
        self.journal = Journal(world, self.clock)
        self.position = Position(settings.seed)
        self.best = 0.0
        self.uncompared: list[str] = []
        """What the bits depend on, of which the checkpoint it goes on from says nothing."""
        self._unjudged = False
        """Whether an evaluation is due that a stop did not wait for."""
        self._score: Score | None = None
        self._stopwatch = Stopwatch()

    def restore(self, snapshot: Snapshot) -> None:
        """Stand where `snapshot` was taken, at any number of workers; called before `run`, by all ranks.

        Raises:
            CheckpointError: it is the state of another training; nothing was changed then.
        """
        state = snapshot.state
        if missing := sorted(_STATE - state.keys() | {"random"} - snapshot.optimizer.keys()):
            raise CheckpointError(
                f"the checkpoint lacks {', '.join(missing)}: a training cannot go on from it. "
                "Evaluate it with --eval-only --from."
            )
        check_standing(state, self.extent)
        check_random_states(snapshot.optimizer["random"])
        try:
            self._take_over(snapshot)
        except Error:
            raise
        except Exception as error:  # what a state of odd values may meet is without limit
            told = " ".join(str(error).split())
            raise CheckpointError(
                f"the checkpoint does not fit this training: {type(error).__name__}: {told}."
            ) from error

    def _take_over(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        if self.settings.exact is not None:
            self.uncompared = check_go_on(state["identity"], self.world.device)
        self.learner.load(snapshot)
        self.position = Position(state["seed"], state["epoch"], state["samples"])
        self.journal.load_state_dict(state)
        self._stopwatch.seconds, self.best = state["seconds"], state["best"]
        self._unjudged = state.get("unjudged", False)
        restore_random_state(self.world, snapshot.optimizer["random"])

    def run(self, around: Surroundings) -> Result:
        """Train to the end; every rank gets the result.

        Raises:
            PutOff: a rank was asked to stop; a checkpoint has been written.
        """
        with in_step(
            self.learner, self.settings, self.world, clock=self.clock, number=self.journal.steps
        ) as (step, check):
            with around.display, around.profiler:
                self._epochs(step, around)
            check()
        if self._score is None:  # resumed after the last step: only the result was missing
            self._score = self.evaluate()
        around.keeper.finish()
        result = self._result(self._score)
        around.sink.finish(result)
        return result

    def evaluate(self, *, stop: Callable[[], bool] = lambda: False) -> Score:
        """Score the weights as they are now, every test sample once; called by all ranks.

        Raises:
            Interrupted: a rank was to `stop`.
        """
        return evaluate(
            self.learner.evaluated,
            self.test_batches.epoch(),
            total=self.test_total,
            world=self.world,
            autocast=self.learner.precision.autocast(),
            metrics=self.metrics,
            stop=stop,
        )

    def _epochs(self, step: Step, around: Surroundings) -> None:
        if self._unjudged:
            self._judge(around, late=False)
        self.clock.start()
        while self.position.epoch < self.settings.epochs:
            self._stopwatch.start()
            self._epoch(step, around)
            stop, late = self._look(around)
            self._after_epoch(around, stop=stop, late=late)

    def _epoch(self, step: Step, around: Surroundings) -> None:
        """Train from where we stand to the end of the epoch."""
        epoch, count, share = self.position.epoch, 0, 0
        self.clock.mark(OTHER)
        for batch in self.batches.epoch(self.position):
            lr = step.lr
            loss = step(batch)
            count += batch.global_count
            share += batch.local_count
            if loss is None:
                continue
            self.position = batch.after
            self.journal.note(epoch=epoch + 1, count=count, share=share, lr=lr, loss=loss)
            record_step(self.journal.steps)
            count, share = 0, 0
            around.profiler.step_done(self.journal.steps)
            within = self.position.epoch == epoch
            if within and (self.journal.due or around.keeper.due(self.journal.steps)):
                self._pause(around)

    def _pause(self, around: Surroundings) -> None:
        """Look up from the steps: tell, write a checkpoint if one is due, stop if asked to."""
        stop, late = self._look(around)
        if stop:
            self._save_and_leave(around)
        if late or around.keeper.due(self.journal.steps):
            around.keeper.save(self._moment())
        self._stopwatch.start()  # what this took is no part of any step
        self.clock.mark(OTHER)

    def _after_epoch(self, around: Surroundings, *, stop: bool, late: bool) -> None:
        """Evaluate if it is time, and write a checkpoint if one is due; a stop waits for no evaluation."""
        epoch = self.position.epoch
        self._unjudged = epoch == self.settings.epochs or epoch % self.conduct.evaluate_every == 0
        if stop:
            self._save_and_leave(around)
        if self._unjudged:
            self._judge(around, late=late)
        elif late or around.keeper.due(self.journal.steps):
            around.keeper.save(self._moment())

    def _judge(self, around: Surroundings, *, late: bool) -> None:
        """Evaluate, then write a checkpoint if one is due: what it holds has been judged."""
        try:
            score = self.evaluate(stop=lambda: bool(around.stop))
        except Interrupted:
            self._save_and_leave(around)
        epoch, train_loss = self.position.epoch, self.journal.take_mean_loss()
        best = score.accuracy > self.best
        self._score, self._unjudged = score, False
        self.best = max(self.best, score.accuracy)
        around.sink.evaluation(self._row(score, train_loss))
        around.display.epoch_done(epoch, score=score, loss=train_loss, seconds=self._stopwatch.seconds)
        if late or best or epoch == self.settings.epochs or around.keeper.due(self.journal.steps):
            around.keeper.save(self._moment(), score=score.accuracy)
        self.clock.start()  # no step is told with an evaluation

    def _look(self, around: Surroundings) -> tuple[bool, bool]:
        """Tell what the steps since the last look were; return whether to stop, and to write a checkpoint."""
        look = self.journal.look(bool(around.stop), around.keeper.late)
        self._stopwatch.stop()  # a look waits for the device: only then are the steps over
        if look.rows:
            around.sink.steps(look.rows)
            around.sink.ranks(look.ranks)
            around.display.advance(step=self.journal.steps, loss=look.rows[-1]["loss"], ranks=look.ranks)
        stop, late = look.wishes
        return stop, late

    def _save_and_leave(self, around: Surroundings) -> NoReturn:
        around.keeper.save(self._moment())
        around.keeper.finish()
        asked = self.world.all_gather_objects(None if around.stop.signal is None else around.stop.signal.name)
        by = next(name for name in asked if name is not None)
        raise PutOff(f"stopped by {by} after step {self.journal.steps} of {self.steps}, with a checkpoint")

    def _moment(self) -> Moment:
        return Moment(
            model=self.learner.tensors(),
            optimizer=self.learner.rest(),
            average=self.learner.averaged(),
            state={
                **asdict(self.position),
                **self.journal.state_dict(),
                "seconds": self._stopwatch.seconds,
                "best": self.best,
                "unjudged": self._unjudged,
                "world_size": self.world.place.size,
                "settings": self.settings.as_dict(),
                **({"identity": identity(self.world.device)} if self.settings.exact is not None else {}),
            },
        )

    def _row(self, score: Score, train_loss: float | None) -> dict[str, Any]:
        return {
            "step": self.journal.steps,
            "epoch": self.position.epoch,
            "samples": self.journal.samples,
            "seconds": self._stopwatch.seconds,
            "train_loss": train_loss,
            **score.as_dict(),
        }

    def _result(self, score: Score) -> Result:
        return Result(
            accuracy=score.accuracy,
            correct=score.correct,
            total=score.total,
            loss=score.loss,
            epochs=self.settings.epochs,
            steps=self.journal.steps,
            seconds=self._stopwatch.seconds,
            samples_per_second=self.journal.samples / self._stopwatch.seconds,
            weights_sha256=weights_sha256(self.learner.tensors()),
            world_size=self.world.place.size,
            step_s=self.journal.median_phases(),
            metrics=score.metrics,
        )
