"""Divides an epoch into global batches, and each of them into the parts of the ranks; pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from samestep.base.errors import UsageError
from samestep.base.place import Place


def share(count: int, rank: int, size: int) -> range:
    """Return the indices in a global batch of `count` samples that `rank` of `size` takes.

    Shares are contiguous and in rank order; the first ``count % size`` ranks take one sample more. Shares
    of 7 samples::

        sample    0 1 2 3 4 5 6
        1 rank    0 0 0 0 0 0 0
        2 ranks   0 0 0 0 1 1 1
        3 ranks   0 0 0 1 1 2 2
        9 ranks   0 1 2 3 4 5 6         ranks 7 and 8 take none

    >>> [share(7, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


def weight(local: int, total: int, size: int) -> float:
    """Return the weight of the mean over `local` of `total` samples, in an average over `size` ranks.

    The ranks' gradients are averaged with 1/N, so each rank's mean loss is first multiplied by its weight::

         1                           local * N      sum of local losses       sum of all losses
        --- * sum over ranks of    ----------- *   ---------------------  =  -------------------
         N                            total                local                    total

    The weights of all ranks add up to N; equal shares have weight 1.0, an empty share has 0.0.

    >>> [weight(local, 7, 3) for local in (3, 2, 2)]
    [1.2857142857142858, 0.8571428571428571, 0.8571428571428571]
    """
    return local * size / total


_LARGEST = 2**64 - 1  # maximum of a word of the generator's key; see `epoch_order`


@dataclass(frozen=True, slots=True)
class Position:
    """The position of the next sample.

    It does not depend on the number of workers, so a run can stop on 4 workers in the middle of an epoch and
    continue on 3. A checkpoint stores its ``dataclasses.asdict``.
    """

    seed: int = 0
    """Seed of the order of every epoch."""
    epoch: int = 0
    """Number of completed epochs."""
    samples: int = 0
    """Number of samples used in this epoch, over all workers."""

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "samples"):
            value = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name} is {value}; use a number from 0 to 2**64-1")

    def next_epoch(self) -> "Position":
        """Return the beginning of the epoch after this one."""
        return Position(self.seed, self.epoch + 1, 0)


@dataclass(frozen=True, slots=True)
class LocalPart:
    """One rank's part of a (micro-)batch: places ``start .. stop-1`` of the epoch's order; can be empty."""

    start: int
    stop: int
    weight: float  # weight of the mean over the part; see `weight`
    global_count: int  # number of samples in the (micro-)batch, over all ranks
    after: Position  # position after the step; the beginning of the next epoch after the last step
    last_of_step: bool = True  # whether it belongs to the last micro-batch of its step

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of an epoch, and this rank's part of each.

    An epoch of 10 samples in batches of 4, and the ranks that take them::

        sample    0 1 2 3 | 4 5 6 7 | 8 9        a short last batch is kept, weighted by its samples
        1 rank    0 0 0 0 | 0 0 0 0 | 0 0
        2 ranks   0 0 1 1 | 0 0 1 1 | 0 1
        3 ranks   0 0 1 2 | 0 0 1 2 | 0 1        rank 2 takes part in the last step with no sample

    Raises:
        UsageError: the data set is empty, or a full batch has fewer samples than there are ranks.
    """

    count: int  # number of samples in the data set
    batch_size: int  # number of samples per step, over all ranks
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
        full_share, of_last = (
            len(share(samples, self.place.rank, self.place.size)) for samples in (self.batch_size, last)
        )
        return full * full_share + of_last

    @property
    def ends_empty(self) -> bool:
        """Whether this rank takes no sample of the last batch of an epoch."""
        last = self.count % self.batch_size
        return 0 < last <= self.place.rank and not self.drop_last

    def order(self, position: Position) -> NDArray[np.int64]:
        """Return all sample ids in the order of `position`'s epoch, equal on every rank."""
        return epoch_order(self.count, seed=position.seed, epoch=position.epoch, shuffle=self.shuffle)

    def parts(self, position: Position, *, accumulate: int = 1) -> Iterator[LocalPart]:
        """Yield this rank's parts from `position` to the end of its epoch.

        Args:
            position: its `samples` can be any number, not only a multiple of `batch_size`.
            accumulate: micro-batches of a step; a step of fewer samples has one per sample. The *global*
                batch is divided, so the samples of a micro-batch do not depend on the number of ranks.

        Raises:
            UsageError: `position` is beyond the end of this data set.
        """
        if position.samples > self.count:
            raise UsageError(
                f"cannot resume after {position.samples} samples of an epoch: this data set has "
                f"{self.count}. Use the data set (and subset) of the original run."
            )
        return self._parts(position, accumulate)

    def _parts(self, position: Position, accumulate: int) -> Iterator[LocalPart]:
        rank, size = self.place.rank, self.place.size
        for start in range(position.samples, self.count, self.batch_size):
            total = min(self.batch_size, self.count - start)
            if self.drop_last and total < self.batch_size:
                return
            left = self.count - start - total
            is_last = left < (self.batch_size if self.drop_last else 1)
            after = (
                position.next_epoch() if is_last else Position(position.seed, position.epoch, start + total)
            )
            for micro in (share(total, index, accumulate) for index in range(accumulate)):
                if micro:
                    local, first = share(len(micro), rank, size), start + micro.start
                    yield LocalPart(
                        first + local.start,
                        first + local.stop,
                        weight(len(local), total, size),
                        len(micro),
                        after,
                        last_of_step=micro.stop == total,
                    )


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


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Return the ids 0 .. count-1 in the order that `epoch` visits them.

    Every rank computes it without communication. It is the order that sorts `count` random 64-bit words from
    the counter-based Philox generator with the key (seed, epoch). NumPy guarantees the bit stream of Philox
    across versions, but not the algorithm of its `permutation`.

    Args:
        count: number of samples, the same on every rank.
        seed: 0 .. 2**64 - 1.
        epoch: 0 .. 2**64 - 1.
        shuffle: False gives 0, 1, 2, ... in every epoch.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox).
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(count)
    return _sorting(words)


def _sorting(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the order that sorts `words`, with equal words in their original order.

    The result equals ``np.argsort(words, kind="stable")``, in a sixth (AVX) to a half of the time: the index
    of each word replaces its low bits, and the words themselves are sorted. Words with equal high bits are
    sorted a second time, in full.
    """
    places = np.arange(len(words), dtype=np.uint64)
    low = np.uint64((1 << len(words).bit_length()) - 1)
    packed = (words & ~low) | places
    packed.sort()
    order: NDArray[np.int64] = (packed & low).astype(np.int64)
    packed &= ~low
    same = np.flatnonzero(packed[1:] == packed[:-1])
    if len(same):
        ties = np.union1d(same, same + 1)  # runs of equal high bits, each in index order
        tied = order[ties]
        order[ties] = tied[np.argsort(words[tied], kind="stable")]
    return order
