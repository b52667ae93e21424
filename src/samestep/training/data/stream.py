"""Splits a stream of samples, without index or known length, into global batches.

Every loader process of every rank reads the whole stream, and collates this rank's part of the batches
assigned to it. Thereby the samples of step k are the same with any number of ranks and loader processes, and
all ranks have the same number of steps.

An `IterableDataset` of a serial script splits itself among the DataLoader's processes by
`torch.utils.data.get_worker_info`, and draws from the global generators, which are seeded differently in
each. Here it is read as by a single process: no split, and seeded generators.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from copy import copy
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from samestep.base.errors import Error, PeerLost, UsageError
from samestep.base.place import Place
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached, instead, put
from samestep.parallel.sharding import Position, share, weight
from samestep.ranks.world.protocol import World
from samestep.training.data.sharded_loader import (
    Collate,
    FailedBatch,
    Passes,
    ShardedLoader,
    StepBatch,
    empty_batch,
    raise_if_failed,
)


class SingleReader:
    """A reentrant context for reading from a stream.

    Inside, `get_worker_info` returns None, and Python's, NumPy's and torch's CPU generators have the stream's
    states, seeded by (seed, epoch). On exit the stream's states are saved and the previous ones restored.
    """

    def __init__(self, start: Position) -> None:
        words = np.random.SeedSequence([start.seed, start.epoch]).generate_state(3, np.uint64)
        torch_seed, python_seed, numpy_seed = (int(word) for word in words)
        self._inside = RngState(
            torch.Generator().manual_seed(torch_seed).get_state(),
            None,
            random.Random(python_seed).getstate(),
            np.random.RandomState(numpy_seed % 2**32).get_state(legacy=True),
        )
        self._info: Any = None

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        outside = RngState.now()
        self._inside.restore()
        self._inside = outside
        # `get_worker_info` reads it, and nothing sets it.
        self._info = put(declarations.WORKER_INFO, self._info)


@contextmanager
def worker_info(info: Any) -> Iterator[None]:
    """Make `get_worker_info` return `info` in the block."""
    with attached(declarations.WORKER_INFO, instead(info)):
        yield


class StreamLoader(ShardedLoader):
    """A `ShardedLoader` of an `IterableDataset`; ``len`` and `remaining` need one with a length.

    See `shard` for its options.

    Raises:
        UsageError: in the first step, on all ranks: ranks or loader processes read different streams, or an
            empty batch can be needed and cannot be built.
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
        self._stream = _Stream(dataset, batch_size, world.place, collate, seed=seed, drop_last=drop_last)
        self._world = world
        if options.get("worker_init_fn") is not None:
            options["worker_init_fn"] = _WithUserDataset(options["worker_init_fn"])
        super().__init__(self._stream, self._stream, batch_size=None, collate_fn=_identity, **options)

    def _drawn(self) -> Iterator[StepBatch]:
        start = self._stream.begin()
        place, after = self._world.place, start
        parts = map(raise_if_failed, self._from_torch(start))
        for part in chain(self._first_parts(parts), parts):
            stop = after.samples + part.global_count
            after = start.next_epoch() if part.is_last else Position(start.seed, start.epoch, stop)
            local = len(share(part.global_count, place.rank, place.size))
            yield StepBatch(
                part.batch, weight(local, part.global_count, place.size), part.global_count, after
            )

    def _first_parts(self, parts: "Iterator[_Part]") -> "list[_Part]":
        """Return the first part of each loader process, after all ranks have compared their streams.

        A rank that fails takes part in the comparison, so that no other rank waits for it.
        """
        try:
            first_parts = list(islice(parts, max(1, self.num_workers)))
        except Error as error:
            self._compare([], error)
            raise
        except Exception as error:  # its class can be unknown on other ranks, so its text is sent
            text = f"worker {self._world.place.rank} could not read its data: {type(error).__name__}: {error}"
            with suppress(Error):
                self._compare([], PeerLost(text))
            raise
        self._compare([part.first for part in first_parts])
        return first_parts

    def _compare(self, firsts: list[str], failure: Error | None = None) -> None:
        """Gather the first samples' checksums; raise the first failure of a rank, or if they differ."""
        gathered = self._world.all_gather_objects((firsts, failure))
        for _, error in gathered:
            if error is not None:
                raise copy(error) from None
        _check_same_stream([checksums for checksums, _ in gathered])

    def __len__(self) -> int:
        """Return the steps per epoch; raise TypeError if the stream has no length."""
        return self._stream.steps(Position())

    @property
    def remaining(self) -> int:
        """See `ShardedLoader.remaining`; raises TypeError if the stream has no length."""
        return self._stream.steps(self.position)


class _Part(NamedTuple):
    """This rank's part of a global batch from a loader process; a tuple, so that DataLoader can pin it."""

    batch: Any  # the local batch
    global_count: int  # samples over all ranks
    is_last: bool  # whether it is the last of its epoch
    first: str  # checksum of the pass's first sample, in the first part of a loader process; else empty


class _Stream(IterableDataset[_Part | FailedBatch], Passes):
    """This rank's parts of the global batches, read in this process or in several loader processes."""

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int,
        place: Place,
        collate: Collate,
        *,
        seed: int,
        drop_last: bool,
    ) -> None:
        Passes.__init__(self, seed)
        self.dataset = dataset
        self._batch_size = batch_size
        self._place = place
        self._collate = collate
        self._drop_last = drop_last
        self._probe = self._may_end_empty()
        # Persistent loader processes have copies of this object, and read the start of each epoch from
        # this shared memory.
        self._start = torch.zeros(3, dtype=torch.uint64, device="cpu").share_memory_()  # type: ignore[no-untyped-call]

    def begin(self) -> Position:
        """See `Passes.begin`; sends the position to the loader processes."""
        start = super().begin()
        self._start.copy_(
            torch.tensor([start.seed, start.epoch, start.samples], dtype=torch.uint64, device="cpu")
        )
        return start

    def begin_at(self, position: Position) -> None:
        """See `Passes.begin_at`; refuses a position beyond the end of a stream with a length."""
        if isinstance(self.dataset, Sized) and position.samples > len(self.dataset):
            raise _beyond(position, len(self.dataset))
        super().begin_at(position)

    def steps(self, position: Position) -> int:
        """Return the steps from `position` to the end of its epoch."""
        if not isinstance(self.dataset, Sized):
            raise TypeError(f"{type(self.dataset).__name__} has no len(), so its number of steps is unknown")
        full, rest = divmod(max(len(self.dataset) - position.samples, 0), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[_Part | FailedBatch]:
        start = Position(*self._start.tolist())  # read now, because the next pass overwrites it
        info = get_worker_info()
        process, of = (0, 1) if info is None else (info.id, info.num_workers)
        batches = _batches(self._samples(start), self._batch_size, drop_last=self._drop_last)
        return self._parts(batches, SingleReader(start), process, of)

    def _parts(
        self, batches: Iterator[tuple[list[Any], bool]], reader: SingleReader, process: int, of: int
    ) -> Iterator[_Part | FailedBatch]:
        """Yield the batches ``mine + k * of``."""
        number, first = 0, ""
        try:
            while True:
                with reader:
                    samples, is_last = next(batches, ([], True))
                if not samples:
                    return
                if number == 0 and (of > 1 or self._place.size > 1):
                    first = sample_digest(samples[0])
                if number % of == process:
                    yield _Part(self._batch(samples), len(samples), is_last, first)
                    first = ""
                number += 1
        except UsageError as error:
            yield FailedBatch(error)

    def _batch(self, samples: list[Any]) -> Any:
        """Return this rank's part of a global batch."""
        if self._probe:  # fails in the first step instead of the last
            self._probe = False
            self._empty(samples[0])
        span = share(len(samples), self._place.rank, self._place.size)
        local = samples[span.start : span.stop]
        return self._collate(local) if local else self._empty(samples[0])

    def _empty(self, sample: Any) -> Any:
        leaves = "leaves" if isinstance(self.dataset, Sized) else "of this stream without a length can leave"
        why = f"a short last batch {leaves} worker {self._place.rank} without samples"
        return empty_batch(self._collate, sample, why=why)

    def _may_end_empty(self) -> bool:
        """Return whether this rank can have no sample in the last batch of a whole epoch."""
        if self._drop_last or not isinstance(self.dataset, Sized):
            return self._place.rank > 0 and not self._drop_last
        return 0 < len(self.dataset) % self._batch_size <= self._place.rank

    def _samples(self, start: Position) -> Iterator[Any]:
        """Yield the samples of an epoch from `start`; earlier ones are read and skipped."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(start.epoch)
        samples = iter(self.dataset)
        skipped = sum(1 for _ in islice(samples, start.samples))
        if skipped < start.samples:
            raise _beyond(start, skipped)
        yield from samples


def _batches(samples: Iterator[Any], batch_size: int, *, drop_last: bool) -> Iterator[tuple[list[Any], bool]]:
    """Yield the global batches, each with whether it is the last, by reading ahead."""
    ahead = batch_size if drop_last else 1
    window: list[Any] = []
    while True:
        window += islice(samples, batch_size + ahead - len(window))
        batch, window = window[:batch_size], window[batch_size:]
        if len(batch) < ahead:
            return
        yield batch, len(window) < ahead


def _check_same_stream(firsts: Sequence[Sequence[str]]) -> None:
    """Raise UsageError if the first samples of a rank's loader processes differ, or those of two ranks."""
    for rank, checksums in enumerate(firsts):
        if len(set(checksums)) > 1:
            raise UsageError(
                f"the loader processes of worker {rank} read different first samples: the data set uses an "
                "unseeded generator, such as random.Random(), or a worker_init_fn splits it. Use the global "
                "generators, or one that set_epoch seeds, and read the same stream in every process."
            )
        if set(checksums) != set(firsts[0]):
            raise UsageError(
                f"worker {rank} reads another first sample than worker 0: the data set splits itself by "
                "worker, or uses an unseeded generator. Read the same stream on every worker; samestep.shard "
                "splits it."
            )


class _WithUserDataset:
    """A `worker_init_fn` for which `get_worker_info` has the user's data set, as in the serial script."""

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
        "Use the data of the first start."
    )


def _identity(part: _Part | FailedBatch) -> _Part | FailedBatch:
    return part


def sample_digest(sample: Any) -> str:
    """Return a checksum of the tensors, arrays, numbers and strings in `sample`.

    An object of any other class contributes only the name of its class.
    """
    digest = hashlib.sha256()
    _add(digest, sample)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", value: Any) -> None:
    digest.update(f"{type(value).__qualname__} ".encode())
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested:
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        value = value.detach().cpu().resolve_conj().resolve_neg().flatten()
        value = value.clone(memory_format=torch.contiguous_format)  # a strided view is not contiguous
        digest.update(value.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, str | int | float | complex | np.generic):
        digest.update(repr(value).encode())
    elif isinstance(value, list | tuple | Mapping):
        for part in value.items() if isinstance(value, Mapping) else value:
            _add(digest, part)
    digest.update(b";")
