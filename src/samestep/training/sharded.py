"""Training by logical shards: their batches side by side, and the step that goes through them one by one."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.data.image_set import Images
from samestep.data.lazy_loader import loading_processes
from samestep.data.loader import Batch
from samestep.data.loading import Batches, Draw, batches_of
from samestep.exact.shards import Exact
from samestep.sharding.position import Position
from samestep.training.step import Step
from samestep.world.world import World


@dataclass(frozen=True, slots=True)
class Shares:
    """One (micro-)batch as this rank's logical shards have it."""

    batches: Sequence[Batch]
    """One for each of this rank's shards, in order."""

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
        """Where the run stands once the step is done."""
        return self.batches[0].after

    @property
    def last_of_step(self) -> bool:
        """Whether the step ends with it."""
        return self.batches[0].last_of_step


class ShardedBatches:
    """Epochs of this rank's logical shards, each drawn as a rank of its own would draw it.

    Args:
        images: the data set.
        draw: how.
        shards: how many there are, and which of them are this rank's.
        world: for its device.
        workers: loading processes of this rank, for a set that is read.
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
        """Return the steps of a whole epoch."""
        return len(self._sets[0])

    def epoch(self, position: Position | None = None) -> Iterator[Shares]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""
        for batches in zip(*(one.epoch(position) for one in self._sets), strict=True):
            yield Shares(batches)


@dataclass(slots=True, kw_only=True)
class ExactStep(Step):
    """A step of shards that are computed one by one; see `samestep.exact.shards`.

    The micro-batches of a step are kept until its last one: a shard goes through all of them before the next
    shard begins, so that what it adds up does not depend on who computes it.
    """

    exact: Exact
    number: int
    """Of the next step of the whole run."""
    _kept: list[Shares] = field(default_factory=list, init=False)

    def __call__(self, batch: Shares) -> Tensor | None:
        """See `Step.__call__`."""
        self._kept.append(batch)
        if not batch.last_of_step:
            return None
        kept, self._kept = self._kept, []
        loss = self._through_shards(kept)
        self._update()
        self.number += 1
        return loss

    def _through_shards(self, kept: Sequence[Shares]) -> Tensor:
        """Return the sum of what this rank's samples add to the loss, times the number of ranks."""
        exact, loss = self.exact, torch.zeros((), device=self.exact.device)
        with closing(exact.shards(self.number)) as shards:
            for position, _ in enumerate(shards):
                for batch in (shares.batches[position] for shares in kept):
                    if len(batch.labels):
                        loss += self._shard_backward(batch)
                        self.clock.mark("backward")
        self.clock.mark("exposed_sync")
        return loss * exact.num_ranks

    def _shard_backward(self, batch: Batch) -> Tensor:
        """See `Step._backward`; weighted for an average over shards, of which the tree makes a sum.

        Raises:
            UsageError: batch norm has no statistics of so small a shard.
        """
        try:
            return self._backward(batch, batch.weight / self.exact.num_shards)
        except ValueError as error:
            if len(batch.labels) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise UsageError(
                f"--exact {self.exact.num_shards}: step {self.number + 1} has {batch.global_count} samples, "
                "of which a logical shard gets a single one, and batch norm cannot normalise one value. Use "
                "fewer shards, or a --batch-size or --subset that leaves more for an epoch's last step."
            ) from None
