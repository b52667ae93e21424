"""A stream of samples, without index or known length, cut into global batches.

Every rank reads the whole stream, and keeps its share of each global batch; so does every loader process of
a rank, and collates the batches that fall to it. That is what it takes for the samples of step k to be the
same at any number of ranks and of loader processes, and for all ranks to make the same number of steps.
"""

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from copy import copy
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from samestep.base.errors import Error, PeerLost, UsageError
from samestep.base.place import Place
from samestep.data.alone import Alone, worker_info
from samestep.data.empty import empty_batch
from samestep.data.failed import Failed, unless_failed
from samestep.data.sample_digest import sample_digest
from samestep.data.sharded_loader import Collate, Drawn, ShardedLoader
from samestep.sharding.position import Position
from samestep.sharding.share import share, weight
from samestep.world.world import World


class StreamLoader(ShardedLoader):
    """A `ShardedLoader` of an `IterableDataset`; ``len`` and `remaining` need one that has a length.

    Args:
        dataset: the stream; the same on every rank.
        batch_size: samples per step, over all ranks.
        seed: chooses what the stream draws at random, with the epoch.
        drop_last: leave out a last batch that is not full.
        world: the ranks to share among.
        collate: makes a batch of samples.
        options: what else `DataLoader` takes.

    Raises:
        UsageError: in the first step, on all ranks alike: the ranks, or the loader processes of one, do not
            read the same stream, or a rank may go without samples and no batch of none can be made.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int,
        seed: int,
        drop_last: bool,
        world: World,
        collate: Collate,
        **options: Any,
    ) -> None:
        self._stream = _Stream(dataset, batch_size, world.place, collate, drop_last=drop_last)
        self._stream.upcoming = Position(seed)
        self._world = world
        if options.get("worker_init_fn") is not None:
            options["worker_init_fn"] = _ShowUsersData(options["worker_init_fn"])
        super().__init__(self._stream, self._stream, batch_size=None, collate_fn=_as_it_is, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private class
        return self._tell(self._drawn())

    def _drawn(self) -> Iterator[Drawn]:
        start = self._stream.begin()
        place, stands = self._world.place, start
        parts = self._parts()
        for part in chain(self._opening(parts), parts):
            stop = stands.samples + part.global_count
            stands = start.next_epoch() if part.is_last else Position(start.seed, start.epoch, stop)
            local = len(share(part.global_count, place.rank, place.size))
            yield Drawn(part.batch, weight(local, part.global_count, place.size), part.global_count, stands)

    def _parts(self) -> "Iterator[_Part]":
        yield from map(unless_failed, super().__iter__())

    def _opening(self, parts: "Iterator[_Part]") -> "list[_Part]":
        """Return the first part of each loader process, once all ranks know that all read the same stream.

        A failure goes along, so that no rank waits for one that has none to show.
        """
        try:
            opening = list(islice(parts, max(1, self.num_workers)))
        except Error as error:
            self._agree([], error)
            raise
        except Exception as error:  # of a class that other ranks may not know: it goes in words
            what = f"worker {self._world.place.rank} could not read its data: {type(error).__name__}: {error}"
            with suppress(Error):
                self._agree([], PeerLost(what))
            raise
        self._agree([part.first for part in opening])
        return opening

    def _agree(self, firsts: list[str], failure: Error | None = None) -> None:
        """Raise the failure of the first rank that has one, or say that the streams differ."""
        told = self._world.all_gather_objects((firsts, failure))
        for _, theirs in told:
            if theirs is not None:
                raise copy(theirs) from None
        _check_same_stream([each for each, _ in told])

    def __len__(self) -> int:
        """Return the steps of a whole epoch.

        Raises:
            TypeError: the stream does not know its length.
        """
        return self._stream.steps(Position())

    @property
    def remaining(self) -> int:
        """See `ShardedLoader.remaining`.

        Raises:
            TypeError: the stream does not know its length.
        """
        return self._stream.steps(self.position)


class _Part(NamedTuple):
    """What a loader process makes of a global batch; a tuple, so that DataLoader can pin it."""

    batch: Any
    """This rank's share."""
    global_count: int
    """Samples over all ranks."""
    is_last: bool
    """Whether the epoch ends with it."""
    first: str
    """Of the first part that a loader process makes in a pass: a digest of the pass's first sample."""


class _Stream(IterableDataset[_Part | Failed]):
    """This rank's parts of the global batches; read in this process or in several loader processes."""

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int,
        place: Place,
        collate: Collate,
        *,
        drop_last: bool,
    ) -> None:
        self.dataset = dataset
        self._batch_size = batch_size
        self._place = place
        self._collate = collate
        self._drop_last = drop_last
        self._probe = self._may_end_empty()
        self.upcoming = Position()
        # Loader processes that stay from epoch to epoch hold copies of this object: they learn here where
        # the epoch that they are to read begins.
        self._start = torch.zeros(3, dtype=torch.uint64).share_memory_()  # type: ignore[no-untyped-call]

    def begin(self) -> Position:
        """Begin the next pass; return where."""
        start = self.upcoming
        self._start.copy_(torch.tensor([start.seed, start.epoch, start.samples], dtype=torch.uint64))
        self.upcoming = start.next_epoch()
        return start

    def begin_at(self, position: Position) -> None:
        """See `Passes.begin_at`."""
        if isinstance(self.dataset, Sized) and position.samples > len(self.dataset):
            raise _beyond(position, len(self.dataset))
        self.upcoming = position

    def set_epoch(self, epoch: int) -> None:
        """See `Passes.set_epoch`."""
        if epoch != self.upcoming.epoch:
            self.upcoming = Position(self.upcoming.seed, epoch)

    def steps(self, position: Position) -> int:
        """Return the steps from `position` to the end of its epoch."""
        if not isinstance(self.dataset, Sized):
            raise TypeError(f"{type(self.dataset).__name__} has no len(): its steps are not known beforehand")
        full, rest = divmod(max(len(self.dataset) - position.samples, 0), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[_Part | Failed]:
        start = Position(*self._start.tolist())  # now: a pass begun later has another
        info = get_worker_info()
        mine, of = (0, 1) if info is None else (info.id, info.num_workers)
        batches = _batches(self._samples(start), self._batch_size, drop_last=self._drop_last)
        return self._parts(batches, Alone(start), mine, of)

    def _parts(
        self, batches: Iterator[tuple[list[Any], bool]], alone: Alone, mine: int, of: int
    ) -> Iterator[_Part | Failed]:
        """Yield every batch number ``mine + k * of``."""
        number, first = 0, ""
        try:
            while True:
                with alone:
                    samples, is_last = next(batches, ([], True))
                if not samples:
                    return
                if number == 0 and (of > 1 or self._place.size > 1):
                    first = sample_digest(samples[0])
                if number % of == mine:
                    yield _Part(self._batch(samples), len(samples), is_last, first)
                    first = ""
                number += 1
        except UsageError as error:
            yield Failed(error)

    def _batch(self, samples: list[Any]) -> Any:
        """Return this rank's share of a global batch."""
        if self._probe:  # how long a stream is, one learns at its end: too late to find it cannot be made
            self._probe = False
            self._empty(samples[0])
        span = share(len(samples), self._place.rank, self._place.size)
        mine = samples[span.start : span.stop]
        return self._collate(mine) if mine else self._empty(samples[0])

    def _empty(self, sample: Any) -> Any:
        leaves = "leaves" if isinstance(self.dataset, Sized) else "of this stream without a length may leave"
        why = f"a short last batch {leaves} worker {self._place.rank} without samples"
        return empty_batch(self._collate, sample, why=why)

    def _may_end_empty(self) -> bool:
        """Return whether this rank may have no sample in the last batch of a whole epoch."""
        if self._drop_last or not isinstance(self.dataset, Sized):
            return self._place.rank > 0 and not self._drop_last
        return 0 < len(self.dataset) % self._batch_size <= self._place.rank

    def _samples(self, start: Position) -> Iterator[Any]:
        """Yield the samples of an epoch from `start`; those before are read and left out."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(start.epoch)
        samples = iter(self.dataset)
        skipped = sum(1 for _ in islice(samples, start.samples))
        if skipped < start.samples:
            raise _beyond(start, skipped)
        yield from samples


def _batches(samples: Iterator[Any], batch_size: int, *, drop_last: bool) -> Iterator[tuple[list[Any], bool]]:
    """Yield the global batches, each with whether it is the last: known by reading a little ahead."""
    ahead = batch_size if drop_last else 1
    window: list[Any] = []
    while True:
        window += islice(samples, batch_size + ahead - len(window))
        batch, window = window[:batch_size], window[batch_size:]
        if len(batch) < ahead:
            return
        yield batch, len(window) < ahead


def _check_same_stream(firsts: Sequence[Sequence[str]]) -> None:
    """Compare the first samples that each rank's loader processes have read.

    Raises:
        UsageError: they differ within a rank or between two.
    """
    for rank, theirs in enumerate(firsts):
        if len(set(theirs)) > 1:
            raise UsageError(
                f"the data set gives the loader processes of worker {rank} different first samples. It may "
                "draw from a generator of its own, such as random.Random(), that is not seeded alike in all, "
                "or be split among them by a worker_init_fn. Let it draw from the global generators, or from "
                "one that it seeds in set_epoch; and let every process read the same stream."
            )
        if set(theirs) != set(firsts[0]):
            raise UsageError(
                f"the data set gives worker {rank} another first sample than worker 0. It may give each "
                "worker a part of its own, or draw from a generator that is not seeded alike on all. "
                "Let every worker read the same stream; samestep.shard cuts it."
            )


class _ShowUsersData:
    """A `worker_init_fn` that finds the user's data set in `get_worker_info`, as in the serial script.

    Args:
        init: the user's.
    """

    def __init__(self, init: Callable[[int], object]) -> None:
        self._init = init

    def __call__(self, process: int) -> None:
        info: Any = get_worker_info()
        shown = copy(info)
        object.__setattr__(shown, "dataset", info.dataset.dataset)  # it is frozen
        with worker_info(shown):
            self._init(process)


def _beyond(position: Position, count: int) -> UsageError:
    return UsageError(
        f"cannot resume after {position.samples} samples of an epoch: this stream ends after {count}. "
        "Use the data that the run began with."
    )


def _as_it_is(part: _Part | Failed) -> _Part | Failed:
    return part
