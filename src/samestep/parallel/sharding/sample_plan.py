"""Plans the samples that one rank reads in each step of an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.parallel.sharding.epoch_order import epoch_order
from samestep.parallel.sharding.global_batches import GlobalBatch, batches
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.share import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of an epoch, and this rank's share of each.

    Raises:
        UsageError: the data set is empty, or a full batch has fewer samples than there are ranks.
    """

    count: int
    """Number of samples in the data set."""
    batch_size: int
    """Number of samples per step, over all ranks."""
    place: Place = field(default_factory=Place)
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"the data set has {self.count} samples; give one with at least 1 sample")
        check_batch_size(self.batch_size, self.place)
        if self.drop_last and self.count < self.batch_size:
            raise UsageError(
                f"drop_last drops all of {self.count} samples: the batch size is {self.batch_size}. "
                f"Use a batch size of at most {self.count}, or keep the last batch."
            )

    def __len__(self) -> int:
        """Return the number of steps of an epoch, equal on every rank."""
        return self.remaining(Position())

    def remaining(self, position: Position) -> int:
        """Return the number of steps from `position` to the end of its epoch, equal on every rank."""
        full, rest = divmod(max(self.count - position.samples, 0), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def local_count(self) -> int:
        """Number of samples that this rank takes in an epoch."""
        full, rest = divmod(self.count, self.batch_size)
        last = 0 if self.drop_last else rest
        each, of_last = (len(share(one, self.place.rank, self.place.size)) for one in (self.batch_size, last))
        return full * each + of_last

    @property
    def ends_empty(self) -> bool:
        """Whether this rank takes no sample of the last batch of an epoch."""
        last = self.count % self.batch_size
        return 0 < last <= self.place.rank and not self.drop_last

    def order(self, position: Position) -> NDArray[np.int64]:
        """Return all sample ids in the order of `position`'s epoch, equal on every rank."""
        return epoch_order(self.count, seed=position.seed, epoch=position.epoch, shuffle=self.shuffle)

    def steps(self, position: Position) -> Iterator[GlobalBatch]:
        """Yield the global batches from `position` to the end of its epoch.

        Raises:
            UsageError: `position` is beyond the end of this data set.
        """
        if position.samples > self.count:
            raise UsageError(
                f"cannot resume after {position.samples} samples of an epoch: this data set has "
                f"{self.count}. Use the data set (and subset) of the original run."
            )
        return batches(self.count, self.batch_size, position, drop_last=self.drop_last)

    def share(self, batch: GlobalBatch) -> range:
        """Return the places of the epoch's order that this rank takes of `batch`."""
        return batch.share(self.place.rank, self.place.size)

    def weight(self, batch: GlobalBatch, *, of: int | None = None) -> float:
        """Return the weight of this rank's mean over its share of `batch`; see `GlobalBatch.weight`."""
        return batch.weight(self.place.rank, self.place.size, of=of)


def check_batch_size(batch_size: int, place: Place) -> None:
    """Check that a full global batch has a sample for every rank.

    Raises:
        UsageError: it has not.
    """
    if batch_size < 1:
        raise UsageError(f"the batch size is {batch_size}; use at least 1")
    if batch_size < place.size:
        raise UsageError(
            f"a global batch of {batch_size} has too few samples for {place.size} workers. "
            f"Use a batch size of {place.size} or more, or at most {batch_size} workers."
        )
