"""The samples that a script's loaders give: its batches, whatever models are then called with.

How many there are is counted where a loader draws the indices of a batch. The batch itself need not tell: its
first dimension may be time, and of graphs it is all their nodes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator
from torch.utils.data.dataloader import _DatasetKind

from samestep.watch.events import redirected, remade
from samestep.watch.tree import leaves

MOST_BATCHES = 1 << 14
"""Of a step: of one that has more samples are not told. It has no end, as that of a graph's replay."""


@dataclass(slots=True)
class _Reading:
    """What one iterator has asked for and not given yet."""

    sizes: deque[int | None] = field(default_factory=deque)
    """Samples of each batch; None where one index stands for the whole of it."""
    has_rows: bool | None = None
    """Whether a batch has a row for each sample; None as long as there was none."""


class Loaded:
    """Counts the samples of the batches that a script gets."""

    def __init__(self) -> None:
        self._batches: list[tuple[int | None, int]] = []
        """Of this step: samples, and the data set they come from, by id."""
        self._used = 0
        """How many of them had come when something was learnt last."""
        self._samples_seen = self._batches_seen = 0
        self._has_several = False
        """Whether a step reads several data sets, which may have epochs of their own."""

    def gave(self, samples: int | None, data: int) -> None:
        """Note a batch.

        Args:
            samples: in it; None where nobody can tell.
            data: the id of the data set that it comes from.
        """
        if len(self._batches) == MOST_BATCHES:
            self._batches, self._used = [(None, data)], min(self._used, 1)
        self._batches.append((samples, data))

    def forget(self) -> None:
        """Forget the batches of this step: another thread had them."""
        self._batches, self._used = [], 0

    def learns(self) -> None:
        """Note a call of training."""
        self._used = len(self._batches)

    def evaluates(self) -> None:
        """Note that what has come since something was learnt was for an evaluation."""
        del self._batches[self._used :]

    def next_step(self) -> int | None:
        """Return the samples of the step that ends; None where nobody can tell."""
        batches, self._batches, self._used = self._batches, [], 0
        known = [size for size, _ in batches if size is not None]
        self._samples_seen += sum(known)
        self._batches_seen += len(known)
        self._has_several |= len({data for _, data in batches}) > 1
        return sum(known) if len(known) == len(batches) else None

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples of an epoch of the loader that is learnt from; None where that is not known."""
        batches = self._batches_seen
        if self._has_several:
            return None
        try:
            if type(loader.batch_sampler) is BatchSampler:
                own = len(loader.sampler)  # type: ignore[arg-type]
                return own - own % (loader.batch_size or 1) if loader.drop_last else own
            # One that somebody wrote may give each rank its part; its `sampler` knows nothing of that.
            return round(len(loader) * self._samples_seen / batches) if batches else None
        except TypeError:  # it has no length, as that of an iterable data set
            return None


class Batches:
    """Tells of the batches that a thread gets from loaders: its maker, until `follow`.

    Args:
        gave: is told of each, see `Loaded.gave`.
    """

    def __init__(self, gave: Callable[[int | None, int], None]) -> None:
        self._gave = gave
        self._thread = get_ident()
        self._readings: WeakKeyDictionary[Any, _Reading] = WeakKeyDictionary()
        self._is_loading = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, it tells."""
        with ExitStack() as stack:
            stack.enter_context(remade(LoaderIterator, "_next_index", self._asking))
            stack.enter_context(redirected(LoaderIterator, "_reset", self._begin_again))
            stack.enter_context(remade(LoaderIterator, "__next__", self._giving))
            yield

    def follow(self) -> None:
        """Tell of those that the calling thread gets from now on."""
        self._thread = get_ident()
        self._is_loading = False

    def _begin_again(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        self._readings.pop(iterator, None)
        return original(iterator, *args, **kwargs)

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        readings = self._readings

        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            reading = readings.get(iterator)
            if reading is None:
                reading = readings[iterator] = _Reading()
            reading.sizes.append(len(index) if type(index) is list else _size(iterator, index))
            return index

        return next_index

    def _giving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        readings, gave = self._readings, self._gave

        def next_batch(iterator: Any) -> Any:
            # Neither what another loader reads, nor what is read ahead of the script.
            counts = get_ident() == self._thread and not self._is_loading
            self._is_loading |= counts
            try:
                batch = original(iterator)
            finally:
                counts &= get_ident() == self._thread  # no other has begun to train meanwhile
                self._is_loading &= not counts
            reading = readings.get(iterator)
            given = None
            if reading is not None and reading.sizes:
                given = reading.sizes.popleft()
                # No public spelling, here and below.
                if given is not None and iterator._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001
                    given = _given(reading, given, batch)
            if counts:
                gave(given, id(iterator._dataset))  # noqa: SLF001
            return batch

        return next_batch


def _size(iterator: Any, index: Any) -> int | None:
    """Return how many samples an index stands for."""
    if not (iterator._auto_collation or isinstance(index, list)):  # noqa: SLF001
        return None
    try:
        return len(index)
    except TypeError:
        return None


def _given(reading: _Reading, asked: int, batch: Any) -> int:
    """Return the samples of a batch of an iterable data set: as many as were asked for, or less."""
    rows = next((len(one) for _, one in leaves(batch) if one.dim()), 0)
    if reading.has_rows is None:
        reading.has_rows = rows == asked
    return rows if reading.has_rows else asked
