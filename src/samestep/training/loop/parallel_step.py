"""Builds the training step and its batches: data-parallel, or by logical shards under ``--exact``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.observe.clock.step_reader import LoopClock
from samestep.parallel.exact.identity import deterministic
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import replicate
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.share import share
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import Images
from samestep.training.data.loader import Batch, ImageLoader, LoaderOptions, loading_processes
from samestep.training.loop.compiling import compiled
from samestep.training.loop.learner import Learner
from samestep.training.loop.step import ReplicatedStep, Step
from samestep.training.settings import Settings


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """This rank's logical shards of one (micro-)batch."""

    batches: Sequence[Batch]  # one per shard of this rank, in order

    @property
    def global_count(self) -> int:
        """Samples over all ranks."""
        return self.batches[0].global_count

    @property
    def local_count(self) -> int:
        """Samples of this rank."""
        return sum(batch.local_count for batch in self.batches)

    @property
    def after(self) -> Position:
        """The position in the data after the step."""
        return self.batches[0].after

    @property
    def last_of_step(self) -> bool:
        """Whether it is the last (micro-)batch of its step."""
        return self.batches[0].last_of_step


LocalBatch: TypeAlias = Batch | ShardBatch
"""This rank's part of one (micro-)batch."""


class LocalBatches(Protocol):
    """Epochs of this rank's parts of global batches."""

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[LocalBatch]:
        """Yield the local batches from `position` to the end of its epoch."""


class ShardedBatches:
    """Epochs of this rank's logical shards, of `count`, each drawn as the local batch of one rank."""

    def __init__(
        self, images: Images, options: LoaderOptions, count: int, *, world: World, workers: int | None
    ) -> None:
        own = share(count, world.place.rank, world.place.size)
        each = (loading_processes(world.place, world.device) if workers is None else workers) // len(own)
        self._loaders = [
            ImageLoader(
                images, options, place=Place(rank=index, size=count), device=world.device, workers=each
            )
            for index in own
        ]

    def __len__(self) -> int:
        """Return the steps per epoch."""
        return len(self._loaders[0])

    def epoch(self, position: Position | None = None) -> Iterator[ShardBatch]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""
        for batches in zip(*(one.epoch(position) for one in self._loaders), strict=True):
            yield ShardBatch(batches)


def training_batches(
    images: Images, options: LoaderOptions, settings: Settings, world: World, *, workers: int | None
) -> LocalBatches:
    """Return this rank's local batches, or with ``--exact`` the batches of its logical shards.

    Raises:
        UsageError: a full batch has fewer samples than ranks or shards.
    """
    if settings.exact is None:
        return ImageLoader(images, options, place=world.place, device=world.device, workers=workers)
    return ShardedBatches(images, options, settings.exact, world=world, workers=workers)


@contextmanager
def synchronized_step(
    learner: Learner, settings: Settings, world: World, *, clock: LoopClock, number: int
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Synchronize gradients and batch norm of the ranks' models within the block; called by all ranks.

    `number` is the index of the next step of the whole run.

    Yields:
        the step, and a function that compares the ranks' weights.

    Raises:
        OutOfStep: the ranks' models differ, or ``--exact`` is not possible on these ranks.
    """
    forward = compiled(learner.model, settings)
    common: dict[str, Any] = {"learner": learner, "settings": settings, "forward": forward, "clock": clock}
    if settings.exact is not None:
        exact = Exact(learner.model, shards=settings.exact, seed=settings.seed, world=world)
        with deterministic(world.device):
            yield ExactStep(exact=exact, number=number, **common), exact.check
        return
    compress = None if settings.compress == "none" else settings.compress
    with replicate(
        learner.model,
        world,
        sync=settings.sync,
        batch_norm=settings.batch_norm or "global",
        compress=compress,
    ) as replicas:
        yield ReplicatedStep(replicas=replicas, **common), replicas.check


@dataclass(slots=True, kw_only=True)
class ExactStep(Step):
    """A step that computes its logical shards one after the other; see `logical_shards`.

    Micro-batches are collected until the last one of the step, because a shard computes all of its
    micro-batches before the next shard starts. Its sums then do not depend on the rank that computes it.
    """

    exact: Exact
    number: int  # index of the next step of the whole run
    _pending: list[ShardBatch] = field(default_factory=list, init=False)

    def __call__(self, batch: ShardBatch) -> Tensor | None:
        """See `Step.__call__`."""
        self._pending.append(batch)
        if not batch.last_of_step:
            return None
        batches, self._pending = self._pending, []
        loss = self._through_shards(batches)
        self._update()
        self.number += 1
        return loss

    def _through_shards(self, pending: Sequence[ShardBatch]) -> Tensor:
        """Add up all gradients; return this rank's part of the loss, times the number of ranks."""
        exact, loss = self.exact, torch.zeros((), device=self.exact.device)
        with closing(exact.shards(self.number)) as shards:
            for position, _ in enumerate(shards):
                for batch in (each.batches[position] for each in pending):
                    if len(batch.labels):
                        loss += self._shard_backward(batch)
                        self.clock.mark("backward")
        self.clock.mark("exposed_sync")
        return loss * exact.num_ranks

    def _shard_backward(self, batch: Batch) -> Tensor:
        """See `Step._backward`; weighted for an average over shards, which the tree reduction sums.

        Raises:
            UsageError: a shard of one sample is too small for batch norm.
        """
        try:
            return self._backward(batch, batch.weight / self.exact.num_shards)
        except ValueError as error:
            if len(batch.labels) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise UsageError(
                f"--exact {self.exact.num_shards}: a logical shard has one of the {batch.global_count} "
                f"samples of step {self.number + 1}, and batch norm cannot normalize one value. Use fewer "
                "shards, or a --batch-size or --subset with which the last step of an epoch has more samples."
            ) from None
