"""What one rank reads, step by step, as a value."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.sharding.batches import GlobalBatch, batches
from samestep.sharding.order import epoch_order
from samestep.sharding.position import Position
from samestep.sharding.share import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of an epoch, and this rank's part of each.

    Raises:
        UsageError: there is nothing to read, or a full batch is too small to give every rank a sample.
    """

    count: int
    """Samples in the data set."""
    batch_size: int
    """Samples per step, over all ranks."""
    place: Place = field(default_factory=Place)
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"the data set holds {self.count} samples: there is nothing to read")
        check_batch_size(self.batch_size, self.place)
        if self.drop_last and self.count < self.batch_size:
            raise UsageError(
                f"drop_last leaves nothing of {self.count} samples in batches of {self.batch_size}. "
                f"Use a batch size of at most {self.count}, or keep the last batch."
            )

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return self.remaining(Position())

    def remaining(self, position: Position) -> int:
        """Return the steps from `position` to the end of its epoch, the same on every rank."""
        full, rest = divmod(max(self.count - position.samples, 0), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def local_count(self) -> int:
        """Samples that this rank takes in a whole epoch."""
        full, rest = divmod(self.count, self.batch_size)
        last = 0 if self.drop_last else rest
        return full * self._take(self.batch_size) + self._take(last)

    @property
    def ends_empty(self) -> bool:
        """Whether a whole epoch ends with a batch of which this rank takes no sample."""
        last = self.count % self.batch_size
        return 0 < last <= self.place.rank and not self.drop_last

    def order(self, position: Position) -> NDArray[np.int64]:
        """Return all sample ids in the order of `position`'s epoch, the same on every rank."""
        return epoch_order(self.count, seed=position.seed, epoch=position.epoch, shuffle=self.shuffle)

    def steps(self, position: Position) -> Iterator[GlobalBatch]:
        """Yield the global batches from `position` to the end of its epoch.

        None are left where `drop_last` drops all that remains after `position`.

        Raises:
            UsageError: `position` lies beyond the end of this data set.
        """
        if position.samples > self.count:
            raise UsageError(
                f"cannot resume after {position.samples} samples of an epoch: this data set holds "
                f"{self.count}. Use the data set (and subset) that the run began with."
            )
        return batches(self.count, self.batch_size, position, drop_last=self.drop_last)

    def share(self, batch: GlobalBatch) -> range:
        """Return the places of the epoch's order that this rank takes of `batch`."""
        return batch.share(self.place.rank, self.place.size)

    def weight(self, batch: GlobalBatch, *, of: int | None = None) -> float:
        """Return what this rank's mean over its share of `batch` weighs; `of` is the whole step's samples."""
        return batch.weight(self.place.rank, self.place.size, of=of)

    def _take(self, count: int) -> int:
        """Return how many of `count` samples this rank takes."""
        return len(share(count, self.place.rank, self.place.size))


def check_batch_size(batch_size: int, place: Place) -> None:
    """Raise UsageError unless a full global batch gives every rank a sample."""
    if batch_size < 1:
        raise UsageError(f"a batch size of {batch_size} is not a batch; use at least 1")
    if batch_size < place.size:
        raise UsageError(
            f"a global batch of {batch_size} cannot give each of {place.size} workers a sample. "
            f"Use a batch size of {place.size} or more, or at most {batch_size} workers."
        )
