"""Provides samplers that yield this rank's part of every global batch, without padding."""

from collections.abc import Iterator, Sized
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from torch.utils.data import Sampler

from samestep.base.errors import UsageError
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.sample_plan import Plan
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World


class Passes:
    """The passes over a data set: each is the next epoch, unless `begin_at` or `set_epoch` is called."""

    def __init__(self, seed: int) -> None:
        self.upcoming = Position(seed)  # position at which the next pass starts

    def begin(self) -> Position:
        """Start the next pass; return its position."""
        start = self.upcoming
        self.upcoming = start.next_epoch()
        return start

    def begin_at(self, position: Position) -> None:
        """Start the next pass at `position`."""
        self.upcoming = position

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; a pending resume of that epoch is kept."""
        if epoch != self.upcoming.epoch:
            self.upcoming = Position(self.upcoming.seed, epoch)


class ShareBatchSampler(Sampler[list[int]], Passes):
    """A batch sampler that yields this rank's part of each global batch, as a list that can be empty."""

    def __init__(self, plan: Plan, *, seed: int) -> None:
        Passes.__init__(self, seed)
        self.plan = plan

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        # A generator starts the pass with its first batch: a DataLoader with workers makes two iterators
        # and draws from the second.
        start = self.begin()
        order = self.plan.order(start)
        for part in self.plan.parts(start):
            yield order[part.start : part.stop].tolist()

    def begin_at(self, position: Position) -> None:
        """See `Passes.begin_at`; refuses a position beyond the end of the data set."""
        self.plan.parts(position)
        super().begin_at(position)


class UnpaddedSampler(Sampler[int]):
    """A replacement of `DistributedSampler` that yields each sample on exactly one rank.

    For evaluation, omit `batch_size`. The data set is split into one contiguous part per rank, and sums over
    ranks count each sample exactly once::

        loader = DataLoader(test_set, batch_size=100, sampler=UnpaddedSampler(test_set))

    For training, give the global batch size, and pass this rank's part of it to the DataLoader::

        sampler = UnpaddedSampler(train_set, batch_size=256, shuffle=True)
        loader = DataLoader(train_set, batch_size=sampler.local_batch_size, sampler=sampler)

    Each pass is a new epoch with its own order; `set_epoch` is optional. Local batches of the last step can
    be uneven; `samestep.shard` also gives the weights that make its mean exact.

    Args:
        data: the data set, or any object whose length is its number of samples.
        batch_size: samples per step over all ranks; None takes the whole data set as one batch.
        shuffle: draw each epoch in its own order.
        seed: determines the orders; the same on every rank.
        drop_last: omit a last batch that is not full.
        world: the ranks; None is the job that this process has joined.

    Raises:
        UsageError: `batch_size` or the last batch of an epoch is smaller than the number of ranks: some ranks
            would have one step less than others, and the others would wait for them.
    """

    def __init__(
        self,
        data: Sized,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        world: World | None = None,
    ) -> None:
        place = (current() if world is None else world).place
        plan = Plan(
            count=len(data),
            batch_size=max(len(data), place.size) if batch_size is None else batch_size,
            place=place,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        last = plan.count % plan.batch_size
        if batch_size is not None and 0 < last < place.size and not drop_last:
            raise UsageError(
                f"the last global batch of {batch_size} has {last} of {plan.count} samples, fewer than the "
                f"{place.size} workers, so that some have one step less. Use samestep.shard or "
                "drop_last=True; for evaluation omit batch_size."
            )
        self._shares = ShareBatchSampler(plan, seed=seed)

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch, for the DataLoader's `batch_size`."""
        return len(next(self._shares.plan.parts(Position())))

    def __len__(self) -> int:
        """Return the number of this rank's samples per epoch."""
        return self._shares.plan.local_count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._shares)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; a pending resume of that epoch is kept."""
        self._shares.set_epoch(epoch)

    def state_dict(self, *, epoch: int, steps: int) -> dict[str, int]:
        """Return the position after `steps` steps of `epoch`, for a checkpoint, valid on any number of ranks.

        The caller gives the position, because a DataLoader's workers draw ahead of the loop.
        """
        plan, position = self._shares.plan, Position(self._shares.upcoming.seed, epoch)
        if steps >= len(plan):
            return asdict(position.next_epoch())
        return asdict(replace(position, samples=steps * plan.batch_size))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next pass at the position of `state`.

        Raises:
            UsageError: it is beyond the end of this data set.
        """
        self._shares.begin_at(Position(**state))
