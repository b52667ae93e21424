"""Divides an epoch into global batches, in the same way on every rank."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.share import share, weight


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The samples of one step: places ``start .. stop-1`` of the epoch's order."""

    start: int
    stop: int
    after: Position
    """Position after this batch; the beginning of the next epoch after the last batch."""

    @property
    def count(self) -> int:
        """Number of samples in the batch, over all ranks."""
        return self.stop - self.start

    def share(self, rank: int, size: int) -> range:
        """Return the places of the epoch's order that `rank` of `size` takes; may be empty."""
        part = share(self.count, rank, size)
        return range(self.start + part.start, self.start + part.stop)

    def weight(self, rank: int, size: int, *, of: int | None = None) -> float:
        """Return the weight of the mean over a rank's share; see `samestep.parallel.sharding.share.weight`.

        Args:
            rank: the rank.
            size: number of ranks.
            of: number of samples in the step, if this is a micro-batch of it.
        """
        return weight(len(self.share(rank, size)), self.count if of is None else of, size)

    def micro_batches(self, parts: int) -> list["GlobalBatch"]:
        """Return the batch in `parts` parts, the first ones larger by one if it does not divide evenly.

        The *global* batch is divided, and each rank takes its share of each part, so the samples of a part do
        not depend on the number of ranks. A batch of fewer samples than parts has one part per sample.
        """
        spans = [share(self.count, part, parts) for part in range(parts)]
        return [
            GlobalBatch(self.start + one.start, self.start + one.stop, self.after) for one in spans if one
        ]


def batches(
    count: int, batch_size: int, position: Position, *, drop_last: bool = False
) -> Iterator[GlobalBatch]:
    """Yield the global batches from `position` to the end of its epoch.

    An epoch of 10 samples in batches of 4, and the ranks that take them::

        sample    0 1 2 3 | 4 5 6 7 | 8 9        a short last batch is kept, weighted by its samples
        1 rank    0 0 0 0 | 0 0 0 0 | 0 0
        2 ranks   0 0 1 1 | 0 0 1 1 | 0 1
        3 ranks   0 0 1 2 | 0 0 1 2 | 0 1        rank 2 takes part in the last step with no sample

    Args:
        count: number of samples in the data set.
        batch_size: number of samples per step, over all ranks.
        position: first position; its `samples` can be any number, not only a multiple of `batch_size`.
        drop_last: drop a last batch that is not full.
    """
    for start in range(position.samples, count, batch_size):
        stop = min(start + batch_size, count)
        if drop_last and stop - start < batch_size:
            return
        is_last = count - stop < (batch_size if drop_last else 1)
        after = position.next_epoch() if is_last else Position(position.seed, position.epoch, stop)
        yield GlobalBatch(start, stop, after)


def micro_batches(steps: Iterable[GlobalBatch], parts: int) -> Iterator[tuple[GlobalBatch, GlobalBatch]]:
    """Yield each micro-batch of each step, after its step; see `GlobalBatch.micro_batches`."""
    for step in steps:
        for micro in [step] if parts == 1 else step.micro_batches(parts):
            yield step, micro
