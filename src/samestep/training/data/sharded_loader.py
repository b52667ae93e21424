"""Provides samplers and DataLoaders of this rank's parts of global batches, without padding.

A part without samples is an empty batch.
"""

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sized
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from samestep.base.errors import UsageError
from samestep.base.renamed import warn_renamed
from samestep.parallel.sharding import Plan, Position
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


_WHY = "a short last batch leaves this worker without samples"


def empty_batch(collate: Callable[[list[Any]], Any], sample: Any, *, why: str = _WHY) -> Any:
    """Return the batch of no samples, extrapolated from batches that `collate` returns.

    The batches of 2 and of 4 copies of `sample` are compared, and sizes that grow are extrapolated to 0::

                                    2 samples           4 samples       none
        stacked images              (2, 3, 8, 8)        (4, 3, 8, 8)    (0, 3, 8, 8)
        sequence first              (5, 2)              (5, 4)          (5, 0)
        tuple(zip(*samples))        ((a, a), (b, b))    ...             ((), ())
        offsets of flat samples     [0, 5, 10]          (5,)            [0]
        a count                     2                   4               0
        anything else               "text"              "text"          "text"

    Sizes 2 and 4 are used because some functions squeeze a batch of 1, and others make pairs.

    Raises:
        UsageError: the batch is neither tensors, arrays nor lists, tuples and dicts of them, or nothing in
            it grows with the samples; begins with `why`.
    """
    two, four = (collate([deepcopy(sample) for _ in range(count)]) for count in (2, 4))
    extrapolate = _Extrapolation()
    try:
        empty = extrapolate(two, four)
        if not extrapolate.grows:
            raise _NotExtrapolated(f"a {_name(two)} of equal length for 2 and for 4 samples")
    except _NotExtrapolated as error:
        raise UsageError(
            f"{why}, and an empty batch cannot be built, because the collate function returns {error}. Use "
            "drop_last=True, a batch size whose last batch has a sample for every worker, or a collate "
            "function that returns tensors, arrays, lists, tuples or dicts."
        ) from None
    return empty


class _NotExtrapolated(Exception):  # noqa: N818 - names the fault
    """The return value of a collate function that has no form for an empty batch."""


class _Extrapolation:
    """A linear extrapolation of the sizes in a batch from 2 and 4 samples to none."""

    grows = False
    """Whether any size has grown so far."""

    def __call__(self, two: Any, four: Any) -> Any:
        if type(two) is not type(four):
            raise _NotExtrapolated(f"a {_name(two)} of 2 samples but a {_name(four)} of 4")
        if isinstance(two, Tensor | np.ndarray):
            return self._array(two, four)
        if isinstance(two, list | tuple):
            return self._sequence(two, four)
        if isinstance(two, dict | UserDict) and two.keys() == four.keys():
            changed = copy(two)  # keeps the class and its other attributes
            changed.update({key: self(two[key], four[key]) for key in two})
            return changed
        if isinstance(two, int | np.integer):
            return type(two)(0) if four == 2 * two else two
        if two is four or isinstance(two, str | bytes | float | complex):
            return two
        raise _NotExtrapolated(f"a {_name(two)}")

    def _array(self, two: Any, four: Any) -> Any:
        if isinstance(two, Tensor) and (two.is_nested or two.layout != torch.strided):
            raise _NotExtrapolated("a nested or sparse tensor")
        if two.ndim != four.ndim:
            raise _NotExtrapolated(f"{two.ndim} dimensions for 2 samples but {four.ndim} for 4")
        if two.shape == four.shape:
            doubled = _counts(two) and bool((four == 2 * two).all())
            return two - two if doubled else two
        self.grows = True
        return two[tuple(slice(_at_none(a, b)) for a, b in zip(two.shape, four.shape, strict=True))]

    def _sequence(self, two: Any, four: Any) -> Any:
        if len(two) != len(four):
            self.grows = True
            return two[: _at_none(len(two), len(four))]
        parts = map(self, two, four)
        return type(two)(*parts) if hasattr(two, "_fields") else type(two)(parts)


def _at_none(two: int, four: int) -> int:
    """Return the length for no samples, by linear extrapolation from those for 2 and 4."""
    return max(0, 2 * two - four)


def _counts(array: Any) -> bool:
    """Return whether `array` contains integers, such as the number of samples of each step."""
    if isinstance(array, Tensor):
        return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
    return bool(array.dtype.kind in "iu")


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """An error of samestep in place of a batch; errors of the user's code keep torch's traceback."""

    error: UsageError


def raise_if_failed(value: T | FailedBatch) -> T:
    """Return `value`, or raise its error if it is a `FailedBatch`."""
    if isinstance(value, FailedBatch):
        raise copy(value.error)  # the original's traceback would keep loader processes alive
    return value


Collate = Callable[[list[Any]], Any]
"""Makes a batch of samples."""


class StepBatch(NamedTuple):
    """This rank's batch of one step."""

    batch: Any  # the local batch
    weight: float  # weight of the mean over the local batch
    global_count: int  # samples over all ranks
    after: Position  # the position in the data after the step


class _EmptyShardWeight(float):
    """The weight of an empty shard: 0, also times NaN, which is the mean loss of no samples.

    So are its products with numbers and its parts, such as ``loss_weight / accumulated_batches``.
    """

    def __mul__(self, factor: Any) -> Any:
        return NotImplemented if isinstance(factor, Tensor) else self

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        return NotImplemented if isinstance(divisor, Tensor) else self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what a function of torch returns; a product with NaN is 0, with a gradient of 0."""
        del types
        without_nan = _PRODUCTS.get(func.__name__)

        def passed(value: Any) -> Any:
            if isinstance(value, Tensor) and without_nan is not None:
                return without_nan(value, 0.0, 0.0, 0.0)
            return float(value) if isinstance(value, cls) else value

        return func(*map(passed, args), **{name: passed(value) for name, value in (kwargs or {}).items()})


_PRODUCTS: Mapping[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), torch.nan_to_num),
    **dict.fromkeys(("mul_", "__imul__", "multiply_"), torch.nan_to_num_),
}
"""The functions of torch that multiply, and what removes NaN from their arguments, in place if they do."""


class ShardedLoader(DataLoader[Any]):
    """A DataLoader whose batches are this rank's parts of global batches; constructed by `shard`.

    All ranks have the same number of steps. A rank without samples in a short last batch has a batch of the
    same form and of length 0. `loss_weight`, `global_count` and `position` are those of the current batch.
    ``len`` is the steps of a whole epoch, even if the next pass resumes one; see `remaining`.
    """

    loss_weight: float = 1.0
    """Weight of the mean over this rank's batch, local * N / global; multiply the loss by it.

    For an empty shard it is 0, and its product with the NaN that is the mean loss of no samples is 0, too.
    """
    global_count: int = 0
    """Samples in the batch over all ranks."""

    def __init__(self, dataset: Dataset[Any], passes: Passes, **options: Any) -> None:
        self._passes = passes
        self._after: Position | None = None  # after the current batch; None between passes
        self._continues = False  # the next pass is the first here and not the first of its run
        super().__init__(dataset, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private class
        """Yield the batches, and set the loader's attributes to those of the current one."""
        after = None
        try:
            for step in self._drawn():
                self.loss_weight = step.weight or _EmptyShardWeight()
                self.global_count = step.global_count
                after = self._after = step.after
                yield step.batch
        finally:
            if self._after is after:  # else another pass has begun meanwhile
                self._after = None

    def _drawn(self) -> Iterator[StepBatch]:
        """Yield the batches of the next pass."""
        raise NotImplementedError

    def _from_torch(self, start: Position) -> Iterator[Any]:
        """Return torch's iterator of a pass from `start`.

        Torch draws a seed from the global generator for it, or with `persistent_workers` for the first pass
        only. The state that a checkpoint after this draw has must not be drawn from again.
        """
        drawn = start.samples > 0 or (self._continues and self.persistent_workers)
        self._continues = False
        with torch.random.fork_rng(devices=[], enabled=drawn):
            return super().__iter__()

    @property
    def weight(self) -> float:
        """Return `loss_weight`, under the name that it had before 0.2."""
        warn_renamed("ShardedLoader.weight", "ShardedLoader.loss_weight")
        return self.loss_weight

    @property
    def position(self) -> Position:
        """The position after the current batch; between passes, the start of the next one."""
        return self._passes.upcoming if self._after is None else self._after

    @property
    def remaining(self) -> int:
        """Steps from `position` to the end of its epoch: between passes, the steps of the next one."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, which otherwise is the one after the previous pass.

        The position in an epoch that `load_state_dict` has set is kept if that is the epoch.
        """
        self._passes.set_epoch(epoch)
        self._after = None

    def state_dict(self) -> dict[str, int]:
        """Return `position`, for a checkpoint; valid with any number of ranks.

        Within a pass, a resumed run continues with the batch after the current one. ``break`` ends a pass, as
        with any DataLoader: the next pass, here and in a resumed run, is the next epoch. To resume the rest
        of the epoch, take the state before ``break``.
        """
        return asdict(self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next pass at the position of `state`, which can be within an epoch.

        That pass has `remaining` steps. ``len`` stays that of a whole epoch, for schedules over
        ``epochs * len(loader)`` steps; a progress bar starts at ``len(loader) - loader.remaining``.

        Raises:
            UsageError: the position is beyond the end of this data set.
        """
        position = Position(**state)
        self._passes.begin_at(position)
        self._after = None
        self._continues = position.epoch > 0


class IndexedLoader(ShardedLoader):
    """A `ShardedLoader` of a map-style data set; see `shard` for its options."""

    def __init__(
        self, dataset: Dataset[Any], plan: Plan, *, seed: int, collate: Collate, **options: Any
    ) -> None:
        self._shares = ShareBatchSampler(plan, seed=seed)
        may_be_empty = plan.place.size > 1 and not plan.drop_last
        fetches_batches = bool(getattr(dataset, "__getitems__", None))
        super().__init__(
            _FetchesBatches(dataset) if may_be_empty and fetches_batches else dataset,
            self._shares,
            batch_sampler=self._shares,
            collate_fn=_CollateOrEmpty(collate, dataset, probe=plan.ends_empty),
            **options,
        )

    def _drawn(self) -> Iterator[StepBatch]:
        start = self._shares.upcoming
        parts = self._shares.plan.parts(start)
        for part, batch in zip(parts, self._from_torch(start), strict=True):
            yield StepBatch(raise_if_failed(batch), part.weight, part.global_count, part.after)

    @property
    def remaining(self) -> int:
        """See `ShardedLoader.remaining`."""
        return self._shares.plan.remaining(self.position)


class _FetchesBatches(Dataset[Any]):
    """A data set that fetches the samples of a batch in one call, and is not called for an empty share.

    Its other attributes are those of the user's data set, for reading and writing.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        vars(self)["_dataset"] = dataset

    def __reduce__(self) -> tuple[Any, ...]:  # else pickle asks the user's data set for a state
        return type(self), (self._dataset,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples: list[Any] = self._dataset.__getitems__(indices) if indices else []
        return samples


@dataclass(slots=True)
class _CollateOrEmpty:
    """A collate function that also returns empty batches, in the form of sample 0."""

    collate: Collate
    dataset: Dataset[Any]
    probe: bool  # whether an empty batch will be needed; then the first call checks that it is possible

    def __call__(self, samples: list[Any]) -> Any:
        try:
            return self._batch(samples)
        except UsageError as error:
            return FailedBatch(error)

    def _batch(self, samples: list[Any]) -> Any:
        if samples and self.probe:
            self.probe = False
            empty_batch(self.collate, samples[0])
        return self.collate(samples) if samples else empty_batch(self.collate, self.dataset[0])
