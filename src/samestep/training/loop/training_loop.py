"""Runs the training loop: epochs of steps, evaluations, and checkpoints between steps.

`Callbacks` has the objects that the loop calls: sink, display, checkpoints, stop request, profiler.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn

from torch import nn

from samestep.base.errors import CheckpointError, Error, Preempted
from samestep.base.signals import handled
from samestep.base.step_phases import OTHER
from samestep.base.worker_records import record_step
from samestep.observe.step_reader import loop_clock
from samestep.parallel.exact.identity import check_resumable, identity
from samestep.parallel.gradients.agreement import weights_sha256
from samestep.parallel.sharding import Position
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.random_state import check_random_states, restore_random_state
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.data.augmentation import parse_augment
from samestep.training.data.image_set import Images
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.loop.evaluate import Interrupted, Score, evaluate
from samestep.training.loop.learner import Learner
from samestep.training.loop.metrics import TorchMetrics
from samestep.training.loop.precision import Precision
from samestep.training.loop.progress import Display
from samestep.training.loop.step import Step, synchronized_step, training_batches
from samestep.training.output.profile import Profiler
from samestep.training.output.run_folder import Result, Sink
from samestep.training.output.step_journal import Journal
from samestep.training.settings import RunOptions, Settings


class StopRequest:
    """The latest stop signal that this process has received; true once there is one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def record(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; installed as its handler."""
        self.signal = signal.Signals(number)


@contextmanager
def stop_request(names: Sequence[str]) -> Iterator[StopRequest]:
    """Record the signals called `names`, such as ``TERM``, within the block, instead of ending the process.

    Ranks that are threads receive no signals, so their request stays false.
    """
    request = StopRequest()
    with handled([signal.Signals[f"SIG{name}"] for name in names], request.record):
        yield request


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The objects that the training loop of one rank calls."""

    sink: Sink  # stores rows and the result
    display: Display  # shows progress
    checkpoints: CheckpointManager  # writes checkpoints
    stop: StopRequest  # whether this process has received a stop signal
    profiler: Profiler  # traces some of the steps

    @classmethod
    def disabled(cls, world: World, *, sink: Sink | None = None) -> "Callbacks":
        """Return callbacks that store, show and trace nothing, except that `sink` receives the rows."""
        return cls(
            sink=Sink() if sink is None else sink,
            display=Display(),
            checkpoints=CheckpointManager(world, RunOptions(), folder=None),
            stop=StopRequest(),
            profiler=Profiler(None, Path(), world, total=0),
        )


def check_progress(state: Mapping[str, Any], settings: Settings, count: int) -> None:
    """Check that `state`, which has every key that a training needs, is possible with `count` samples.

    Steps, epochs and samples determine each other. With a position that contradicts the data set or itself, a
    run would end early or train on other batches.

    Raises:
        CheckpointError: names the value, or the setting that differs.
    """
    settings.check_resumable(state["settings"])
    epoch, samples = state["epoch"], state["samples"]
    if state["seed"] != settings.seed:
        raise _refusal("seed", state["seed"], f"the run has --seed {settings.seed}")
    if epoch > settings.epochs or (epoch == settings.epochs and samples):
        raise _refusal("epoch", epoch, f"the training has {settings.epochs} epochs")
    if samples >= count:
        raise _refusal("samples", samples, f"the data set has {count}; use that of the first start")
    if samples % settings.batch_size:
        raise _refusal("samples", samples, f"a multiple of the batch size {settings.batch_size} is expected")
    step = epoch * -(-count // settings.batch_size) + samples // settings.batch_size
    total = epoch * count + samples
    for name, value in (("step", step), ("samples_total", total)):
        if state[name] != value:
            raise _refusal(
                name,
                state[name],
                f"{epoch} epochs of {count} samples and {samples} more make {value}; use the data set and "
                "the --subset of the first start",
            )
    if state["loss_count"] > total:
        raise _refusal("loss_count", state["loss_count"], f"at most {total}, the samples used, is expected")


def _refusal(name: str, value: object, why: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint has {name} {value!r:.60}: {why}.")


EVALUATION_BATCH = 1000
"""Samples per evaluation step at most, over all workers."""
_STATE = frozenset(
    {
        *("seed", "epoch", "samples", "step", "samples_total", "loss_sum", "loss_count"),
        *("seconds", "best", "unjudged", "settings"),
    }
)
"""Keys of a training in ``state.json``."""


def evaluation_batch(settings: Settings, workers: int) -> int:
    """Return the samples per evaluation step, over all workers; they change no result.

    Twice the samples of a training step fit into the same memory, because no activations are kept.
    """
    return max(workers, min(EVALUATION_BATCH, 2 * settings.batch_size // settings.accumulate))


class Training:
    """One rank of one training.

    The weights of the network are drawn with the settings' seed. Settings and options are the same on every
    rank; `metrics` are evaluated besides accuracy and loss.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        *,
        train_set: Images,
        test_set: Images,
        settings: Settings,
        world: World,
        options: RunOptions | None = None,
        metrics: TorchMetrics | None = None,
    ) -> None:
        settings.check_workers(world.place.size)
        self.settings, self.world, self.options = settings, world, options or RunOptions()
        self.metrics = metrics
        dtype = Precision.of(settings.precision, world.device).images
        training_options = LoaderOptions(
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            shuffle=settings.shuffle != "never",
            reshuffle=settings.shuffle == "every-epoch",
            augment=parse_augment(settings.augment),
            dtype=dtype,
        )
        test_options = LoaderOptions(
            batch_size=evaluation_batch(settings, world.place.size), shuffle=False, dtype=dtype
        )
        workers = self.options.loader_workers
        self.batches = training_batches(train_set, training_options, settings, world, workers=workers)
        self.test_batches = ImageLoader(
            test_set, test_options, place=world.place, device=world.device, workers=workers
        )
        self.test_total = len(test_set)
        self.train_total = len(train_set)
        self.steps = settings.epochs * len(self.batches)
        self.learner = Learner(
            make_model,
            settings,
            device=world.device,
            workers=1 if settings.exact else world.place.size,
            steps_per_epoch=len(self.batches),
        )
        self.clock = loop_clock(world.device)
        self.journal = Journal(world, self.clock)
        self.position = Position(settings.seed)
        self.best = 0.0
        self.uncompared: list[str] = []
        """Properties that the bits depend on and the restored checkpoint does not record."""
        self._evaluation_due = False  # whether a stop signal has skipped an evaluation that is due
        self._score: Score | None = None
        self._seconds, self._began = 0.0, 0.0
        """Time of all steps, without the pauses between them, and the start of the running ones."""

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`, with any number of workers; called before `run`, by all ranks.

        Raises:
            CheckpointError: it is the state of another training.
        """
        state = snapshot.state
        if missing := sorted(_STATE - state.keys() | {"random"} - snapshot.optimizer.keys()):
            raise CheckpointError(
                f"the checkpoint has no {', '.join(missing)}, so that no training can resume from it. "
                "Evaluate it with --eval-only --from."
            )
        try:
            check_progress(state, self.settings, self.train_total)
            check_random_states(snapshot.optimizer["random"])
            self._load(snapshot)
        except Error:
            raise
        except Exception as error:  # invalid values can raise anything
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"the checkpoint does not fit this training: {type(error).__name__}: {reason}."
            ) from error

    def _load(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        if self.settings.exact is not None:
            self.uncompared = check_resumable(state["identity"], self.world.device)
        self.learner.load(snapshot)
        self.position = Position(state["seed"], state["epoch"], state["samples"])
        self.journal.load_state_dict(state)
        self._seconds, self.best = state["seconds"], state["best"]
        self._evaluation_due = state["unjudged"]
        restore_random_state(self.world, snapshot.optimizer["random"])

    def run(self, callbacks: Callbacks) -> Result:
        """Train to the end; every rank returns the result.

        Raises:
            Preempted: a rank received a stop signal; a checkpoint has been written.
        """
        with synchronized_step(
            self.learner, self.settings, self.world, clock=self.clock, number=self.journal.steps
        ) as (step, check):
            with callbacks.display, callbacks.profiler:
                self._epochs(step, callbacks)
            check()
        if self._score is None:  # resumed after the last step
            self._score = self.evaluate()
        callbacks.checkpoints.finish()
        result = self._result(self._score)
        callbacks.sink.finish(result)
        return result

    def evaluate(self, *, stop: Callable[[], bool] = lambda: False) -> Score:
        """Score the current weights on the test set; called by all ranks.

        Raises:
            Interrupted: `stop` returned true on a rank.
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

    @property
    def begins_with_evaluation(self) -> bool:
        """Whether `run` evaluates before its first step."""
        return self._evaluation_due or (not self.journal.steps and self.options.evaluate_first)

    def _epochs(self, step: Step, callbacks: Callbacks) -> None:
        if self.begins_with_evaluation:
            self._evaluate_and_save(callbacks, late=False)
        self.clock.start()
        while self.position.epoch < self.settings.epochs:
            self._began = perf_counter()
            self._epoch(step, callbacks)
            stop, late = self._end_window(callbacks)
            self._after_epoch(callbacks, stop=stop, late=late)

    def _epoch(self, step: Step, callbacks: Callbacks) -> None:
        """Train from the current position to the end of the epoch."""
        epoch, count, local_count = self.position.epoch, 0, 0
        self.clock.mark(OTHER)
        for batch in self.batches.epoch(self.position):
            lr = step.lr
            loss = step(batch)
            count += batch.global_count
            local_count += batch.local_count
            if loss is None:
                continue
            self.position = batch.after
            self.journal.record(epoch=epoch + 1, count=count, local_count=local_count, lr=lr, loss=loss)
            record_step(self.journal.steps)
            count, local_count = 0, 0
            callbacks.profiler.step_done(self.journal.steps)
            in_epoch = self.position.epoch == epoch
            if in_epoch and (self.journal.due or callbacks.checkpoints.due(self.journal.steps)):
                self._pause(callbacks)

    def _pause(self, callbacks: Callbacks) -> None:
        """Report the window between two steps, save a checkpoint if one is due, and stop if requested."""
        stop, late = self._end_window(callbacks)
        if stop:
            self._save_and_stop(callbacks)
        if late or callbacks.checkpoints.due(self.journal.steps):
            callbacks.checkpoints.save(self._snapshot())
        self._began = perf_counter()  # the pause is part of no step
        self.clock.mark(OTHER)

    def _after_epoch(self, callbacks: Callbacks, *, stop: bool, late: bool) -> None:
        """Evaluate and save a checkpoint if they are due; a stop signal skips the evaluation."""
        epoch = self.position.epoch
        self._evaluation_due = epoch == self.settings.epochs or epoch % self.options.evaluate_every == 0
        if stop:
            self._save_and_stop(callbacks)
        if self._evaluation_due:
            self._evaluate_and_save(callbacks, late=late)
        elif late or callbacks.checkpoints.due(self.journal.steps):
            callbacks.checkpoints.save(self._snapshot())

    def _evaluate_and_save(self, callbacks: Callbacks, *, late: bool) -> None:
        """Evaluate, then save a checkpoint with the score if one is due."""
        try:
            score = self.evaluate(stop=lambda: bool(callbacks.stop))
        except Interrupted:
            self._save_and_stop(callbacks)
        epoch, train_loss = self.position.epoch, self.journal.take_mean_loss()
        best = score.accuracy > self.best and self.journal.steps > 0
        self._score, self._evaluation_due = score, False
        self.best = max(self.best, score.accuracy)
        callbacks.sink.evaluation(self._row(score, train_loss))
        callbacks.display.epoch_done(epoch, score=score, loss=train_loss, seconds=self._seconds)
        if late or best or epoch == self.settings.epochs or callbacks.checkpoints.due(self.journal.steps):
            callbacks.checkpoints.save(self._snapshot(), score=score.accuracy)
        self.clock.start()  # the evaluation is part of no step

    def _end_window(self, callbacks: Callbacks) -> tuple[bool, bool]:
        """Store and show the window's steps; return whether to stop, and whether a checkpoint is due."""
        window = self.journal.end_window(bool(callbacks.stop), callbacks.checkpoints.late)
        # The window has waited for the device, so the steps are complete.
        self._seconds += perf_counter() - self._began
        if window.rows:
            callbacks.sink.steps(window.rows)
            callbacks.sink.ranks(window.ranks)
            callbacks.display.advance(window)
        stop, late = window.requests
        return stop, late

    def _save_and_stop(self, callbacks: Callbacks) -> NoReturn:
        callbacks.checkpoints.save(self._snapshot())
        callbacks.checkpoints.finish()
        request = callbacks.stop.signal
        received = self.world.all_gather_objects(None if request is None else request.name)
        by = next(name for name in received if name is not None)
        raise Preempted(f"stopped by {by} after step {self.journal.steps} of {self.steps}, with a checkpoint")

    def _snapshot(self) -> Snapshot:
        average = self.learner.average
        return Snapshot(
            model=self.learner.model.state_dict(),
            optimizer=self.learner.optimization_state(),
            average=None if average is None else average.state_dict(),
            state={
                **asdict(self.position),
                **self.journal.state_dict(),
                "seconds": self._seconds,
                "best": self.best,
                "unjudged": self._evaluation_due,
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
            "seconds": self._seconds,
            "train_loss": train_loss,
            **score.as_dict(),
            "evaluation_seconds": score.seconds,
        }

    def _result(self, score: Score) -> Result:
        return Result(
            accuracy=score.accuracy,
            correct=score.correct,
            total=score.total,
            loss=score.loss,
            epochs=self.settings.epochs,
            steps=self.journal.steps,
            seconds=self._seconds,
            samples_per_second=self.journal.samples / self._seconds,
            weights_sha256=weights_sha256(self.learner.model.state_dict()),
            world_size=self.world.place.size,
            step_s=self.journal.median_phases(),
            metrics=score.metrics,
        )
