"""Counts the samples of the batches that a script loads, whatever models are then called with.

The count is taken where a loader draws the indices of a batch. The batch itself does not show it: its first
dimension may be time, or all nodes of several graphs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import _DatasetKind

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, named, wrapping
from samestep.hooks.tensor_tree import leaves

MAX_BATCHES = 1 << 14
"""Maximum batches tracked per step; beyond it the sample count is unknown. Graph replays never end a step."""


@dataclass(slots=True)
class _Pending:
    """The batches that an iterator has requested and not returned yet."""

    sizes: deque[int | None] = field(default_factory=deque)
    """Samples of each batch; None where one index stands for the whole batch."""
    has_rows: bool | None = None
    """Whether a batch has a row for each sample; None before the first batch."""


class LoadedSamples:
    """The samples of the batches that a script has loaded."""

    def __init__(self) -> None:
        self._batches: list[tuple[int | None, int]] = []
        """Samples and id of the data set, for each batch of this step."""
        self._used = 0  # the number of these batches that were loaded before the last training call
        self._samples_seen = self._batches_seen = 0
        self._has_several = False  # whether a step reads several data sets, whose epochs may differ

    def add(self, samples: int | None, data: int) -> None:
        """Record a batch.

        Args:
            samples: number of its samples; None if unknown.
            data: id of the data set.
        """
        if len(self._batches) == MAX_BATCHES:
            self._batches, self._used = [(None, data)], min(self._used, 1)
        self._batches.append((samples, data))

    def clear(self) -> None:
        """Drop the batches of this step: another thread loaded them."""
        self._batches, self._used = [], 0

    def trained(self) -> None:
        """Record a training call."""
        self._used = len(self._batches)

    def drop_evaluation(self) -> None:
        """Drop the batches since the last training call: they were for an evaluation."""
        del self._batches[self._used :]

    def next_step(self) -> int | None:
        """Return the samples of the step that ends; None if unknown."""
        batches, self._batches, self._used = self._batches, [], 0
        if not batches:
            return 0
        known = [size for size, _ in batches if size is not None]
        self._samples_seen += sum(known)
        self._batches_seen += len(known)
        self._has_several |= len({data for _, data in batches}) > 1
        return sum(known) if len(known) == len(batches) else None

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples of an epoch of the training loader; None if unknown."""
        batches = self._batches_seen
        if self._has_several:
            return None
        try:
            if type(loader.batch_sampler) is BatchSampler:
                own = len(loader.sampler)  # type: ignore[arg-type]
                return own - own % (loader.batch_size or 1) if loader.drop_last else own
            # A user-defined batch sampler may give each rank its shard, which `sampler` does not show.
            return round(len(loader) * self._samples_seen / batches) if batches else None
        except TypeError:  # no length, as with an iterable data set
            return None


class LoaderHook:
    """Reports the batches that one thread gets from loaders: the thread that created it, until `follow`.

    Args:
        on_batch: called with each batch, see `LoadedSamples.add`.
    """

    def __init__(self, on_batch: Callable[[int | None, int], None]) -> None:
        self._on_batch = on_batch
        self._thread = get_ident()
        self._pending: WeakKeyDictionary[Any, _Pending] = WeakKeyDictionary()
        self._is_loading = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Report batches for the duration of a block."""
        hooks = {
            declarations.LOADED_INDEX: named(self._wrap_next_index),
            declarations.LOADED_RESET: wrapping(self._reset),
            declarations.LOADED_BATCH: named(self._wrap_next),
        }
        with attached_all(hooks):
            yield

    def follow(self) -> None:
        """Report the batches of the calling thread from now on."""
        self._thread = get_ident()
        self._is_loading = False

    def _reset(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        self._pending.pop(iterator, None)
        return original(iterator, *args, **kwargs)

    def _wrap_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        pending = self._pending

        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            entry = pending.get(iterator)
            if entry is None:
                entry = pending[iterator] = _Pending()
            entry.sizes.append(len(index) if type(index) is list else _size(iterator, index))
            return index

        return next_index

    def _wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        pending, on_batch = self._pending, self._on_batch

        def next_batch(iterator: Any) -> Any:
            # Not the batches that another loader reads, nor those prefetched for the script.
            counts = get_ident() == self._thread and not self._is_loading
            self._is_loading |= counts
            try:
                batch = original(iterator)
            finally:
                counts &= get_ident() == self._thread  # no other thread has begun to train during the call
                self._is_loading &= not counts
            entry = pending.get(iterator)
            samples = None
            if entry is not None and entry.sizes:
                samples = entry.sizes.popleft()
                # No public spelling, here and below.
                if samples is not None and iterator._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001
                    samples = _samples_in(entry, samples, batch)
            if counts:
                on_batch(samples, id(iterator._dataset))  # noqa: SLF001
            return batch

        return next_batch


def _size(iterator: Any, index: Any) -> int | None:
    """Return how many samples an index selects; None if unknown."""
    if not (iterator._auto_collation or isinstance(index, list)):  # noqa: SLF001
        return None
    try:
        return len(index)
    except TypeError:
        return None


def _samples_in(entry: _Pending, asked: int, batch: Any) -> int:
    """Return the samples of a batch of an iterable data set: the requested number, or fewer."""
    rows = next((len(one) for _, one in leaves(batch) if one.dim()), 0)
    if entry.has_rows is None:
        entry.has_rows = rows == asked
    return rows if entry.has_rows else asked
