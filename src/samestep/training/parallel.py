"""How a step's work is shared: among replicas of the model, or as logical shards of the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from samestep.collectives.by_algorithm import by_algorithm
from samestep.data.image_set import Images
from samestep.data.loading import Draw, batches_of
from samestep.exact.deterministic import deterministic
from samestep.exact.shards import Exact
from samestep.measure.clock import StepClock
from samestep.replicas.replicate import replicate
from samestep.sharding.position import Position
from samestep.sharding.share import share
from samestep.training.compiling import compiled
from samestep.training.learner import Learner
from samestep.training.settings import Settings
from samestep.training.sharded import ExactStep, ShardedBatches
from samestep.training.step import ReplicatedStep, Step
from samestep.world.world import World


class Part(Protocol):
    """This rank's part of one global (micro-)batch, as the loop sees it."""

    @property
    def global_count(self) -> int:
        """Samples over all ranks."""

    @property
    def local_count(self) -> int:
        """Samples of this rank."""

    @property
    def after(self) -> Position:
        """Where the run stands once the step is done."""


class Parts(Protocol):
    """Epochs of this rank's parts of global batches."""

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[Part]:
        """Yield the parts from `position` to the end of its epoch."""


def training_batches(
    images: Images, draw: Draw, settings: Settings, world: World, *, workers: int | None
) -> Parts:
    """Return what draws this rank's parts of global batches, for the kind of step that `settings` ask for.

    Args:
        images: the data set.
        draw: how.
        settings: the same on every rank.
        world: the ranks.
        workers: loading processes of this rank, for a set that is read; None is its share of the processor.

    Raises:
        UsageError: a full batch is too small to give every rank, or shard, a sample.
    """
    if settings.exact is None:
        parts: Parts = batches_of(images, draw, place=world.place, device=world.device, workers=workers)
        return parts
    shards = settings.exact, share(settings.exact, world.place.rank, world.place.size)
    return ShardedBatches(images, draw, shards=shards, world=world, workers=workers)


@contextmanager
def in_step(
    learner: Learner, settings: Settings, world: World, *, clock: StepClock, number: int
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Keep the ranks' models equal while they train; called by all ranks.

    Args:
        learner: what is trained.
        settings: the same on every rank.
        world: the ranks.
        clock: for the phases of each step.
        number: of the next step of the whole run.

    Yields:
        the step, and what compares the ranks' weights and raises `OutOfStep` where they differ.

    Raises:
        OutOfStep: the ranks cannot train the same model, or not to the same bits where these are asked for.
    """
    common: dict[str, Any] = {
        "model": learner.model,
        "forward": compiled(learner.model, settings),
        "optimizer": learner.optimizer,
        "schedule": learner.schedule,
        "precision": learner.precision,
        "clock": clock,
        "average": learner.average,
        "clip_norm": settings.clip_norm,
        "label_smoothing": settings.label_smoothing,
        "channels_last": settings.channels_last,
    }
    if settings.exact is not None:
        exact = Exact(learner.model, shards=settings.exact, seed=settings.seed, world=world)
        with deterministic(world.device):
            yield ExactStep(exact=exact, number=number, **common), exact.check
        return
    compress = None if settings.compress == "none" else settings.compress
    ranks = world if settings.algorithm is None else by_algorithm(world, settings.algorithm)
    with replicate(
        learner.model,
        ranks,
        sync=settings.sync,
        batch_norm=settings.batch_norm or "global",
        compress=compress,
    ) as replicas:
        yield ReplicatedStep(replicas=replicas, **common), replicas.check
