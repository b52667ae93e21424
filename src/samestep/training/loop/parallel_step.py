"""Builds the training step and its batches: data-parallel, or by logical shards under ``--exact``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from samestep.observe.clock.phase_clock import StepClock
from samestep.parallel.exact.deterministic_kernels import deterministic
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import replicate
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.share import share
from samestep.ranks.collectives.chosen_algorithms import by_algorithm
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import Images
from samestep.training.data.loading import Draw, batches_of
from samestep.training.loop.compiling import compiled
from samestep.training.loop.exact_step import ExactStep, ShardedBatches
from samestep.training.loop.learner import Learner
from samestep.training.loop.step import ReplicatedStep, Step
from samestep.training.settings.training_settings import Settings


class LocalBatch(Protocol):
    """This rank's part of one global (micro-)batch."""

    @property
    def global_count(self) -> int:
        """Samples over all ranks."""

    @property
    def local_count(self) -> int:
        """Samples of this rank."""

    @property
    def after(self) -> Position:
        """The position in the data after the step."""


class LocalBatches(Protocol):
    """Epochs of this rank's parts of global batches."""

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[LocalBatch]:
        """Yield the local batches from `position` to the end of its epoch."""


def training_batches(
    images: Images, draw: Draw, settings: Settings, world: World, *, workers: int | None
) -> LocalBatches:
    """Return this rank's local batches, or with ``--exact`` the batches of its logical shards.

    Args:
        images: the data set.
        draw: batch size, order and augmentation.
        settings: the same on every rank.
        world: the ranks.
        workers: loading processes of this rank, for a data set on disk; None is its share of the cores.

    Raises:
        UsageError: a full batch has fewer samples than ranks or shards.
    """
    if settings.exact is None:
        batches: LocalBatches = batches_of(
            images, draw, place=world.place, device=world.device, workers=workers
        )
        return batches
    shards = settings.exact, share(settings.exact, world.place.rank, world.place.size)
    return ShardedBatches(images, draw, shards=shards, world=world, workers=workers)


@contextmanager
def synchronized_step(
    learner: Learner, settings: Settings, world: World, *, clock: StepClock, number: int
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Synchronize gradients and batch norm of the ranks' models within the block; called by all ranks.

    Args:
        learner: model, optimizer and schedule.
        settings: the same on every rank.
        world: the ranks.
        clock: records the phases of each step.
        number: index of the next step of the whole run.

    Yields:
        the step, and a function that compares the ranks' weights and raises `OutOfStep` if they differ.

    Raises:
        OutOfStep: the ranks' models differ, or ``--exact`` is not possible on these ranks.
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
