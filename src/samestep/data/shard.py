"""A DataLoader of this rank's slices of global batches."""

from collections.abc import Callable, Iterator, Sized
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from samestep.base.errors import UsageError
from samestep.data.empty import empty_batch
from samestep.data.sampler import ShareBatchSampler
from samestep.sharding.plan import Plan
from samestep.sharding.position import Position
from samestep.world.current import current
from samestep.world.world import World

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


class ShardedLoader(DataLoader[Any]):
    """A DataLoader whose batches are this rank's shares of global batches; made by `shard`.

    All ranks make the same number of steps. A rank that has no sample in a short last batch gets a batch of
    the same form and of length 0. While a batch is in use, `weight`, `global_count` and `position` speak of
    it. ``len`` is the steps of a whole epoch, also where the next pass resumes one; see `remaining`.
    """

    weight: float = 1.0
    """What the mean over this rank's batch weighs, local * N / global: multiply the loss with it."""
    global_count: int = 0
    """Samples in the batch over all ranks."""

    def __init__(self, dataset: Dataset[Any], plan: Plan, *, seed: int, **options: Any) -> None:
        self._shares = ShareBatchSampler(plan, seed=seed)
        self._after: Position | None = None  # where the run stands after the batch in use, if one is
        collate = options.pop("collate_fn", None) or default_collate
        super().__init__(
            dataset,
            batch_sampler=self._shares,
            collate_fn=_Collate(collate, dataset, probe=plan.ends_empty),
            **options,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private class
        plan = self._shares.plan
        steps = plan.steps(self._shares.upcoming)
        mine = None
        try:
            for step, batch in zip(steps, super().__iter__(), strict=True):
                self.weight = plan.weight(step)
                self.global_count = step.count
                mine = self._after = step.after
                yield batch
        finally:
            if self._after is mine:  # else another pass has begun meanwhile
                self._after = None

    @property
    def position(self) -> Position:
        """Where the run stands once the batch in use is done; between passes, where the next begins."""
        return self._shares.upcoming if self._after is None else self._after

    @property
    def remaining(self) -> int:
        """Steps from `position` to the end of its epoch: between passes, the steps of the next one."""
        return self._shares.plan.remaining(self.position)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be `epoch`; without this, each pass is the epoch after the one before.

        An epoch that `load_state_dict` is about to resume is still resumed.
        """
        self._shares.set_epoch(epoch)
        self._after = None

    def state_dict(self) -> dict[str, int]:
        """Return `position`, for a checkpoint; good at any number of ranks.

        Within a pass, a resumed run goes on with the batch after the one in use. A pass left with
        ``break`` is over, as with any DataLoader: the next pass, here and in a resumed run, is the next
        epoch. To resume the rest of a broken epoch, take the state before ``break``.
        """
        return asdict(self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass begin where `state` says, which may be the middle of an epoch.

        That pass is as long as `remaining` says. ``len`` stays that of a whole epoch, as schedules over
        ``epochs * len(loader)`` steps need it; a bar begins at ``len(loader) - loader.remaining``.

        Raises:
            UsageError: that lies beyond the end of this data set.
        """
        self._shares.begin_at(Position(**state))
        self._after = None


def shard(
    data: Dataset[Any] | DataLoader[Any],
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    world: World | None = None,
    **options: Any,
) -> ShardedLoader:
    """Return a DataLoader of this rank's slices of global batches.

    ::

        loader = samestep.shard(train_set, batch_size=256, shuffle=True)
        for epoch in range(10):
            for images, labels in loader:                   # 256 / N of them, a new order every epoch
                loss = loss_fn(model(images), labels) * loader.weight

    The samples of a step, and their number, do not depend on the number of ranks: `batch_size` is the
    *global* batch. The weight is 1.0 but where shares are uneven.

    A short last batch may leave a rank without samples. Its mean loss is NaN, with a gradient of 0: the step
    is right, but ``total += loss.item() * len(labels)`` makes that rank's sum NaN for good. Sum over samples
    instead, which gives 0 for none::

        total += F.cross_entropy(model(images), labels, reduction="sum").item()

    Args:
        data: a data set, or the serial script's DataLoader, whose settings are kept.
        batch_size: samples per step over all ranks.
        shuffle: draw each epoch in its own order, a function of (seed, epoch).
        seed: chooses the orders; the same on every rank.
        drop_last: leave out a last batch that is not full.
        world: the ranks to share among; None is the job this process has joined.
        options: what else `DataLoader` takes: `num_workers`, `pin_memory`, ...

    Raises:
        UsageError: `batch_size` is missing or below the number of ranks, or the data cannot be addressed by
            index, or the DataLoader draws in an order of its own.
    """
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(data, DataLoader):
        given = _settings(data, needs_order=shuffle is None) | given | options
        data = data.dataset
    else:
        given |= options
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length or no index, so its global batches cannot be cut. "
            "Let each worker read its own part, or use a data set with __len__ and __getitem__."
        )
    if "batch_size" not in given:
        raise UsageError("shard(data) needs batch_size=, the samples per step over all workers")
    plan = Plan(
        count=len(data),
        batch_size=given.pop("batch_size"),
        place=(current() if world is None else world).place,
        shuffle=given.pop("shuffle", False),
        drop_last=given.pop("drop_last", False),
    )
    return ShardedLoader(data, plan, seed=seed, **given)


def _settings(loader: DataLoader[Any], *, needs_order: bool) -> dict[str, Any]:
    """Return how `loader` was made, as far as it can be said of a sharded one."""
    settings = {name: getattr(loader, name) for name in _KEPT}
    if isinstance(loader.dataset, IterableDataset):
        return settings
    if loader.batch_size is None:
        raise UsageError(
            "this DataLoader has a batch_sampler of its own, or does not batch at all. "
            "Pass its data set instead, with batch_size=."
        )
    settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if needs_order:
        settings["shuffle"] = _shuffles(loader)
    return settings


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether `loader` shuffles; an order that is neither shuffled nor the plain one is refused."""
    sampler = loader.sampler
    if isinstance(sampler, SequentialSampler):
        return False
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        return True
    raise UsageError(
        f"this DataLoader draws its samples through a {type(sampler).__name__}, whose order is its own. "
        "Say shuffle=True or shuffle=False to use samestep's order."
    )


@dataclass(slots=True)
class _Collate:
    """Collates samples; of no samples it makes a batch of length 0, in the form of sample 0."""

    collate: Callable[[list[Any]], Any]
    dataset: Dataset[Any]
    probe: bool
    """Whether a batch of none will be needed: then the first batch shows that it can be made."""

    def __call__(self, samples: list[Any]) -> Any:
        if samples and self.probe:
            self.probe = False
            empty_batch(self.collate, samples[0])
        return self.collate(samples) if samples else empty_batch(self.collate, self.dataset[0])
