"""Samplers for torch's DataLoader: this rank's share of every global batch, without padding."""

from collections.abc import Iterator, Sized
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from torch.utils.data import Sampler

from samestep.base.errors import UsageError
from samestep.sharding.plan import Plan
from samestep.sharding.position import Position
from samestep.world.current import current
from samestep.world.world import World


class ShareBatchSampler(Sampler[list[int]]):
    """Yields this rank's share of each global batch, as a list that may be empty.

    Each pass is the next epoch, unless `begin_at` says otherwise: an epoch nobody announces has a new
    order too.

    Args:
        plan: the steps, and this rank's part of them.
        seed: chooses the order of every epoch.
    """

    def __init__(self, plan: Plan, *, seed: int) -> None:
        self.plan = plan
        self.upcoming = Position(seed)
        """Where the next pass begins."""

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, so that the pass begins with its first batch: a DataLoader with workers makes two
        # iterators and draws from the second.
        start = self.upcoming
        self.upcoming = start.next_epoch()
        order = self.plan.order(start)
        for part in map(self.plan.share, self.plan.steps(start)):
            yield order[part.start : part.stop].tolist()

    def begin_at(self, position: Position) -> None:
        """Let the next pass begin at `position`."""
        self.plan.steps(position)  # refuses what lies beyond the end
        self.upcoming = position

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be `epoch`; one that it is about to resume is still resumed."""
        if epoch != self.upcoming.epoch:
            self.upcoming = Position(self.upcoming.seed, epoch)


class UnpaddedSampler(Sampler[int]):
    """Yields this rank's samples: none twice, none left out. Takes the place of `DistributedSampler`.

    For evaluation, leave `batch_size` out: the set is cut into one contiguous part per rank, and sums
    over ranks count each sample exactly once::

        loader = DataLoader(test_set, batch_size=100, sampler=UnpaddedSampler(test_set))

    For training, name the global batch, and give the DataLoader what this rank takes of it::

        sampler = UnpaddedSampler(train_set, batch_size=256, shuffle=True)
        loader = DataLoader(train_set, batch_size=sampler.local_batch_size, sampler=sampler)

    Each pass is a new epoch with its own order; `set_epoch` may be called, but need not. Shares of the last
    batch may be uneven: `samestep.shard` also gives the weights that make its mean exact.

    Args:
        data: the data set, or anything whose length is its number of samples.
        batch_size: samples per step over all ranks; None takes the whole set as one batch.
        shuffle: draw each epoch in its own order.
        seed: chooses the orders; the same on every rank.
        drop_last: leave out a last batch that is not full.
        world: the ranks to share among; None is the job this process has joined.

    Raises:
        UsageError: `batch_size` is below the number of ranks, or the last batch of an epoch is: then some
            ranks would make one step less than others, and the others would wait for them.
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
                f"the last of the global batches of {batch_size} holds {last} of {plan.count} samples, too "
                f"few for {place.size} workers: some would make a step less. Use samestep.shard, which keeps "
                "them in step, or drop_last=True; for evaluation leave batch_size out."
            )
        self._shares = ShareBatchSampler(plan, seed=seed)

    @property
    def local_batch_size(self) -> int:
        """Samples of a full global batch that this rank takes: the DataLoader's `batch_size`."""
        plan = self._shares.plan
        first = next(plan.steps(Position()))
        return len(plan.share(first))

    def __len__(self) -> int:
        """Return this rank's samples of a whole epoch."""
        return self._shares.plan.local_count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._shares)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be `epoch`; one that it is about to resume is still resumed."""
        self._shares.set_epoch(epoch)

    def state_dict(self, *, epoch: int, steps: int) -> dict[str, int]:
        """Return the position after the first `steps` steps of `epoch`, for a checkpoint; good at any size.

        The loop has to say where it is: a DataLoader's workers draw ahead of it.
        """
        plan, position = self._shares.plan, Position(self._shares.upcoming.seed, epoch)
        if steps >= len(plan):
            return asdict(position.next_epoch())
        return asdict(replace(position, samples=steps * plan.batch_size))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass begin where `state` says.

        Raises:
            UsageError: that lies beyond the end of this data set.
        """
        self._shares.begin_at(Position(**state))
