"""The global batches of one epoch: spans of its order, cut the same way on every rank."""

from collections.abc import Iterator
from dataclasses import dataclass

from samestep.sharding.position import Position
from samestep.sharding.share import share, weight


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The samples of one step: places ``start .. stop-1`` of the epoch's order."""

    start: int
    stop: int
    after: Position
    """Where the run stands once this batch is used; the next epoch's beginning after the last one."""

    @property
    def count(self) -> int:
        """Samples in the batch, over all ranks."""
        return self.stop - self.start

    def share(self, rank: int, size: int) -> range:
        """Return the places of the epoch's order that `rank` of `size` takes; may be empty."""
        part = share(self.count, rank, size)
        return range(self.start + part.start, self.start + part.stop)

    def weight(self, rank: int, size: int) -> float:
        """Return what the mean over this rank's share weighs; see `samestep.sharding.share.weight`."""
        return weight(len(self.share(rank, size)), self.count, size)


def batches(
    count: int, batch_size: int, position: Position, *, drop_last: bool = False
) -> Iterator[GlobalBatch]:
    """Yield the global batches from `position` to the end of its epoch.

    An epoch of 10 samples in batches of 4, and the ranks that take them::

        sample    0 1 2 3 | 4 5 6 7 | 8 9        a short last batch is kept, and weighs what it holds
        1 rank    0 0 0 0 | 0 0 0 0 | 0 0
        2 ranks   0 0 1 1 | 0 0 1 1 | 0 1
        3 ranks   0 0 1 2 | 0 0 1 2 | 0 1        rank 2 takes part in the last step with no sample

    Args:
        count: samples in the data set.
        batch_size: samples per step, over all ranks.
        position: where to begin; its `samples` need not be a multiple of `batch_size`.
        drop_last: leave out a last batch that is not full.
    """
    for start in range(position.samples, count, batch_size):
        stop = min(start + batch_size, count)
        if drop_last and stop - start < batch_size:
            return
        is_last = count - stop < (batch_size if drop_last else 1)
        after = position.next_epoch() if is_last else Position(position.seed, position.epoch, stop)
        yield GlobalBatch(start, stop, after)
