"""DataLoaders of this rank's shares of global batches."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader, Dataset

from samestep.base.errors import UsageError
from samestep.data.empty import empty_batch
from samestep.data.failed import Failed, unless_failed
from samestep.data.sampler import ShareBatchSampler
from samestep.sharding.plan import Plan
from samestep.sharding.position import Position

Collate = Callable[[list[Any]], Any]
"""Makes a batch of samples."""


class Passes(Protocol):
    """What a loader draws from, pass by pass."""

    @property
    def upcoming(self) -> Position:
        """Where the next pass begins."""

    def begin_at(self, position: Position) -> None:
        """Let the next pass begin at `position`."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be `epoch`; one that it is about to resume is still resumed."""


class Drawn(NamedTuple):
    """One step's batch, as this rank sees it."""

    batch: Any
    """This rank's share."""
    weight: float
    """What the mean over the share weighs."""
    global_count: int
    """Samples over all ranks."""
    after: Position
    """Where the run stands once the batch is used."""


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

    def __init__(self, dataset: Dataset[Any], passes: Passes, **options: Any) -> None:
        self._passes = passes
        self._after: Position | None = None  # where the run stands after the batch in use, if one is
        super().__init__(dataset, **options)

    def _tell(self, drawn: Iterator[Drawn]) -> Iterator[Any]:
        """Yield the batches; while one is in use, the loader speaks of it."""
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
        """Where the run stands once the batch in use is done; between passes, where the next begins."""
        return self._passes.upcoming if self._after is None else self._after

    @property
    def remaining(self) -> int:
        """Steps from `position` to the end of its epoch: between passes, the steps of the next one."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be `epoch`; without this, each pass is the epoch after the one before.

        An epoch that `load_state_dict` is about to resume is still resumed.
        """
        self._passes.set_epoch(epoch)
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
        self._passes.begin_at(Position(**state))
        self._after = None


class IndexedLoader(ShardedLoader):
    """A `ShardedLoader` of a data set whose samples are addressed by index.

    Args:
        dataset: the samples.
        plan: the steps, and this rank's part of each.
        seed: chooses the orders.
        collate: makes a batch of samples.
        options: what else `DataLoader` takes.
    """

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
        return self._tell(self._drawn())

    def _drawn(self) -> Iterator[Drawn]:
        plan = self._shares.plan
        steps = plan.steps(self._shares.upcoming)
        for step, batch in zip(steps, super().__iter__(), strict=True):
            yield Drawn(unless_failed(batch), plan.weight(step), step.count, step.after)

    @property
    def remaining(self) -> int:
        """See `ShardedLoader.remaining`."""
        return self._shares.plan.remaining(self.position)


@dataclass(slots=True)
class _CollateOrEmpty:
    """Collates samples; of no samples it makes a batch of length 0, in the form of sample 0."""

    collate: Collate
    dataset: Dataset[Any]
    probe: bool
    """Whether a batch of none will be needed: then the first batch shows that it can be made."""

    def __call__(self, samples: list[Any]) -> Any:
        try:
            return self._batch(samples)
        except UsageError as error:
            return Failed(error)

    def _batch(self, samples: list[Any]) -> Any:
        if samples and self.probe:
            self.probe = False
            empty_batch(self.collate, samples[0])
        return self.collate(samples) if samples else empty_batch(self.collate, self.dataset[0])
