"""`samestep.shard`: a DataLoader of this rank's slices of global batches, of any data set or DataLoader."""

from collections.abc import Sized
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
from samestep.data.sharded_loader import IndexedLoader, ShardedLoader
from samestep.data.stream import StreamLoader
from samestep.sharding.plan import Plan, check_batch_size
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
_OF_PROCESSES = ("timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers")
"""Settings of loader processes, which torch refuses where there are none."""


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

    An `IterableDataset` is cut in the order in which it is read: every rank, and every loader process, reads
    all of it. It is read as by one process alone, so it must not split itself by rank, and is not asked to
    by loader process; what it draws from the generators of Python, NumPy and torch is the same everywhere.

    Args:
        data: a data set, or the serial script's DataLoader, whose settings are kept.
        batch_size: samples per step over all ranks.
        shuffle: draw each epoch in its own order, a function of (seed, epoch); not of a stream.
        seed: chooses the orders; the same on every rank.
        drop_last: leave out a last batch that is not full.
        world: the ranks to share among; None is the job this process has joined.
        options: what else `DataLoader` takes: `num_workers`, `pin_memory`, ...

    Raises:
        UsageError: `batch_size` is missing or below the number of ranks, or the data has no length and is not
            a stream, or the DataLoader draws in an order of its own, or ``in_order=False``. In the first
            step: ranks or loader processes read different streams.
    """
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    given = {name: value for name, value in settings.items() if value is not None} | options
    if isinstance(data, DataLoader):
        kept = _settings(data, needs_order=shuffle is None)
        if given.get("num_workers") == 0:
            kept = {name: value for name, value in kept.items() if name not in _OF_PROCESSES}
        given = kept | given
        data = data.dataset
    if not given.pop("in_order", True):
        raise UsageError(
            "in_order=False gives batches as loader processes finish them: a batch would be weighed as "
            "another, and ranks would take different steps. Leave it out."
        )
    if "batch_size" not in given:
        raise UsageError("shard(data) needs batch_size=, the samples per step over all workers")
    world = current() if world is None else world
    given["collate"] = given.pop("collate_fn", None) or default_collate
    if isinstance(data, IterableDataset):
        return _stream(data, seed=seed, world=world, **given)
    if not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length, so its global batches cannot be cut. "
            "Give it a __len__, or make it an IterableDataset, which is read to its end."
        )
    plan = Plan(
        count=len(data),
        batch_size=given.pop("batch_size"),
        place=world.place,
        shuffle=given.pop("shuffle", False),
        drop_last=given.pop("drop_last", False),
    )
    return IndexedLoader(data, plan, seed=seed, **given)


def _stream(
    data: IterableDataset[Any],
    *,
    batch_size: int,
    world: World,
    shuffle: bool = False,
    drop_last: bool = False,
    **options: Any,
) -> StreamLoader:
    if shuffle:
        raise UsageError(
            f"{type(data).__name__} is a stream, in an order of its own that shuffle=True cannot change. "
            "Shuffle within the data set; what it draws at random is seeded by (seed, epoch) on every worker."
        )
    check_batch_size(batch_size, world.place)
    return StreamLoader(data, batch_size=batch_size, drop_last=drop_last, world=world, **options)


def _settings(loader: DataLoader[Any], *, needs_order: bool) -> dict[str, Any]:
    """Return how `loader` was made, as far as it can be said of a sharded one."""
    settings = {name: getattr(loader, name) for name in _KEPT}
    if loader.batch_size is None:
        raise UsageError(
            "this DataLoader has a batch_sampler of its own, or does not batch at all. "
            "Pass its data set instead, with batch_size=."
        )
    settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if needs_order and not isinstance(loader.dataset, IterableDataset):
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
