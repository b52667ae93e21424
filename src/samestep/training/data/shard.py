"""Implements `samestep.shard`, which returns a DataLoader of this rank's parts of global batches."""

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
from samestep.parallel.sharding import Plan, check_batch_size
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World
from samestep.training.data.sharded_loader import IndexedLoader, ShardedLoader
from samestep.training.data.stream import StreamLoader

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
"""Settings of loader processes, which torch refuses without any."""


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
    """Return a DataLoader of this rank's parts of global batches.

    ::

        loader = samestep.shard(train_set, batch_size=256, shuffle=True)
        for epoch in range(10):
            for images, labels in loader:                   # 256 / N of them, a new order every epoch
                loss = loss_fn(model(images), labels) * loader.loss_weight

    The samples of a step do not depend on the number of ranks: `batch_size` is the *global* batch. The weight
    is 1.0 unless local batches are uneven.

    A short last batch can leave a rank without samples. Its mean loss is NaN, with a gradient of 0: the step
    is correct, but ``total += loss.item() * len(labels)`` makes that rank's sum NaN. Sum over samples
    instead, which gives 0 for an empty batch::

        total += F.cross_entropy(model(images), labels, reduction="sum").item()

    An `IterableDataset` is split in the order in which it is read: every rank and every loader process reads
    all of it. It must not split itself by rank, and `get_worker_info` returns None in it. The generators of
    Python, NumPy and torch have the same state in it on every rank and in every process.

    Args:
        data: a data set, or the serial script's DataLoader, whose settings are kept.
        batch_size: samples per step over all ranks.
        shuffle: draw each epoch in its own order, a function of (seed, epoch); not for a stream.
        seed: determines the orders; the same on every rank.
        drop_last: omit a last batch that is not full.
        world: the ranks; None is the job that this process has joined.
        options: other arguments of `DataLoader`: `num_workers`, `pin_memory`, ...

    Raises:
        UsageError: `batch_size` is missing or below the number of ranks, the data has no length and is not
            a stream, the DataLoader has a user-defined order, or ``in_order=False``. In the first step: ranks
            or loader processes read different streams.
    """
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    arguments = {name: value for name, value in settings.items() if value is not None} | options
    if isinstance(data, DataLoader):
        kept = _settings(data, needs_order=shuffle is None)
        if arguments.get("num_workers") == 0:
            kept = {name: value for name, value in kept.items() if name not in _OF_PROCESSES}
        arguments = kept | arguments
        data = data.dataset
    if not arguments.pop("in_order", True):
        raise UsageError(
            "in_order=False returns batches in another order than that of the steps, so that weights and "
            "ranks do not match. Omit it."
        )
    if "batch_size" not in arguments:
        raise UsageError("shard(data) needs batch_size=, the samples per step over all workers")
    world = current() if world is None else world
    arguments["collate"] = arguments.pop("collate_fn", None) or default_collate
    if isinstance(data, IterableDataset):
        return _stream(data, seed=seed, world=world, **arguments)
    if not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length, so it cannot be split into global batches. "
            "Give it a __len__, or make it an IterableDataset, which is read to its end."
        )
    plan = Plan(
        count=len(data),
        batch_size=arguments.pop("batch_size"),
        place=world.place,
        shuffle=arguments.pop("shuffle", False),
        drop_last=arguments.pop("drop_last", False),
    )
    return IndexedLoader(data, plan, seed=seed, **arguments)


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
            f"{type(data).__name__} is a stream, whose order shuffle=True cannot change. Shuffle in the data "
            "set; the global generators are seeded by (seed, epoch) on every worker."
        )
    check_batch_size(batch_size, world.place)
    return StreamLoader(data, batch_size=batch_size, drop_last=drop_last, world=world, **options)


def _settings(loader: DataLoader[Any], *, needs_order: bool) -> dict[str, Any]:
    """Return the settings of `loader` that also apply to a sharded loader."""
    settings = {name: getattr(loader, name) for name in _KEPT}
    if loader.batch_size is None:
        raise UsageError(
            "this DataLoader has a user-defined batch_sampler, or does not batch at all. "
            "Pass its data set instead, with batch_size=."
        )
    settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if needs_order and not isinstance(loader.dataset, IterableDataset):
        settings["shuffle"] = _shuffles(loader)
    return settings


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether `loader` shuffles; refuse samplers but those of torch that draw each sample once."""
    sampler, data = loader.sampler, loader.dataset
    kind = type(sampler)  # a subclass may have an order of its own
    draws_all = not isinstance(data, Sized) or len(sampler) == len(data)  # type: ignore[arg-type]
    if kind is SequentialSampler and draws_all:
        return False
    if kind is RandomSampler and draws_all and not sampler.replacement:  # type: ignore[attr-defined]
        return True
    raise UsageError(
        f"this DataLoader has a user-defined order, by its {type(sampler).__name__}. Give shuffle=True or "
        "shuffle=False to use samestep's order."
    )
