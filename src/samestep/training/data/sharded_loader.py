"""Provides DataLoaders of this rank's parts of global batches; a part without samples is an empty batch."""

from collections import UserDict
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from samestep.base.errors import UsageError
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.sample_plan import Plan
from samestep.training.data.sampler import Passes, ShareBatchSampler

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
    except _NotExtrapolated as found:
        raise UsageError(
            f"{why}, and an empty batch cannot be built, because the collate function returns {found}. Use "
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


class ShardedLoader(DataLoader[Any]):
    """A DataLoader whose batches are this rank's parts of global batches; constructed by `shard`.

    All ranks have the same number of steps. A rank without samples in a short last batch has a batch of the
    same form and of length 0. `weight`, `global_count` and `position` are those of the current batch. ``len``
    is the steps of a whole epoch, even if the next pass resumes one; see `remaining`.
    """

    weight: float = 1.0
    """Weight of the mean over this rank's batch, local * N / global; multiply the loss by it."""
    global_count: int = 0
    """Samples in the batch over all ranks."""

    def __init__(self, dataset: Dataset[Any], passes: Passes, **options: Any) -> None:
        self._passes = passes
        self._after: Position | None = None  # after the current batch; None between passes
        super().__init__(dataset, **options)

    def _track(self, drawn: Iterator[StepBatch]) -> Iterator[Any]:
        """Yield the batches, and set the loader's attributes to those of the current one."""
        mine = None
        try:
            for one in drawn:
                self.weight = one.weight
                self.global_count = one.global_count
                mine = self._after = one.after
                yield one.batch
        finally:
            if self._after is mine:  # else another pass has begun meanwhile
                self._after = None

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
        self._passes.begin_at(Position(**state))
        self._after = None


class IndexedLoader(ShardedLoader):
    """A `ShardedLoader` of a map-style data set; see `shard` for its options."""

    def __init__(
        self, dataset: Dataset[Any], plan: Plan, *, seed: int, collate: Collate, **options: Any
    ) -> None:
        self._shares = ShareBatchSampler(plan, seed=seed)
        super().__init__(
            dataset,
            self._shares,
            batch_sampler=self._shares,
            collate_fn=_CollateOrEmpty(collate, dataset, probe=plan.ends_empty),
            **options,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private class
        return self._track(self._drawn())

    def _drawn(self) -> Iterator[StepBatch]:
        parts = self._shares.plan.parts(self._shares.upcoming)
        for part, batch in zip(parts, super().__iter__(), strict=True):
            yield StepBatch(raise_if_failed(batch), part.weight, part.global_count, part.after)

    @property
    def remaining(self) -> int:
        """See `ShardedLoader.remaining`."""
        return self._shares.plan.remaining(self.position)


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
