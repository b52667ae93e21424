"""Trains by logical shards (``--exact``): each rank draws and computes its shards one after the other."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.sharding.position import Position
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import Images
from samestep.training.data.lazy_loader import loading_processes
from samestep.training.data.loader import Batch
from samestep.training.data.loading import Batches, Draw, batches_of
from samestep.training.loop.step import Step


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """This rank's logical shards of one (micro-)batch."""

    batches: Sequence[Batch]
    """One per shard of this rank, in order."""

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


class ShardedBatches:
    """Epochs of this rank's logical shards, each drawn as the local batch of one rank.

    Args:
        images: the data set.
        draw: batch size, order and augmentation.
        shards: their total number, and the indices of this rank's.
        world: for its device.
        workers: loading processes of this rank, for a data set on disk.
    """

    def __init__(
        self, images: Images, draw: Draw, *, shards: tuple[int, range], world: World, workers: int | None
    ) -> None:
        count, own = shards
        each = (loading_processes(world.place, world.device) if workers is None else workers) // len(own)
        self._sets: list[Batches] = [
            batches_of(images, draw, place=Place(rank=index, size=count), device=world.device, workers=each)
            for index in own
        ]

    def __len__(self) -> int:
        """Return the steps per epoch."""
        return len(self._sets[0])

    def epoch(self, position: Position | None = None) -> Iterator[ShardBatch]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""
        for batches in zip(*(one.epoch(position) for one in self._sets), strict=True):
            yield ShardBatch(batches)


@dataclass(slots=True, kw_only=True)
class ExactStep(Step):
    """A step that computes its logical shards one after the other; see `logical_shards`.

    Micro-batches are collected until the last one of the step, because a shard computes all of its
    micro-batches before the next shard starts. Its sums then do not depend on the rank that computes it.
    """

    exact: Exact
    number: int
    """Index of the next step of the whole run."""
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
