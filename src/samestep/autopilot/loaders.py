"""The data loaders of a script, read in shares.

The loader of each rank's copy draws the same indices. What it fetches for a batch is cut here, in the order
in which batches are asked for, and put together when the script gets the batch::

    indices      3 1 4 1 5 9            on every rank
    loaded       3 1 4 | 1 5 9          on rank 0 | on rank 1
    the script   3 1 4 1 5 9            on every rank, with the bits of the whole
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

from samestep.autopilot.account import calling_site
from samestep.autopilot.loading import Loading, Verdict
from samestep.autopilot.orders import Loaded, Order, taking_orders
from samestep.autopilot.rows import FAILED, GOOD, UNLIKE, exchange, put_together, rows_of, statuses
from samestep.autopilot.slicing import Slicing
from samestep.base.errors import UsageError
from samestep.sharding.share import share
from samestep.watch.tree import Path, leaves, mapped

_loading: ContextVar[tuple[Loading, Slicing | None] | None] = ContextVar("samestep_loading", default=None)


class _Sliced:
    """What is told of a loader under ``--split loader``."""

    def text(self) -> str:
        """See `account.LoaderStatus`."""
        return "the loop runs on each worker's slice of a batch"


SLICED = _Sliced()


class Reading:
    """One iterator of a loader.

    Args:
        loading: what is known of loaders.
        loader: this one.
        iterator: its iterator.
        slicing: told of the slices the script gets, under ``--split loader``.
    """

    def __init__(
        self, loading: Loading, loader: DataLoader[Any], iterator: LoaderIterator, slicing: Slicing | None
    ) -> None:
        self._loading, self._slicing = loading, slicing
        # The iterator has this object. In a cycle, it would end only when garbage is collected, which closes
        # the queues before torch tells its worker processes to end by them: 5 s for each of them.
        self._iterator = weakref.proxy(iterator)
        self._place = loading.world.place
        self._verdict = loading.verdict(loader)
        self._thread = threading.get_ident()
        self._pending: deque[tuple[Order | None, int]] = deque()
        """Batches that were asked for and not given yet, and their samples; no order: loaded as they are."""
        self._asked = 0
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again, at the loader's first batch."""
        self._pending.clear()
        self._site = str(calling_site())
        self._is_sliced, self._backwards = False, 0
        if self._slicing is not None:
            self._is_sliced, self._backwards = self._slicing.begins(), self._slicing.backwards
        self._note()

    def _note(self) -> None:
        """Put into the account what is done to the loader."""
        self._loading.note(self._site, SLICED if self._is_sliced else self._verdict)

    def order(self, indices: Any) -> Any:
        """Return what is fetched for a batch."""
        total = len(indices) if isinstance(indices, list | tuple) else 0
        order = self._order(indices, total)
        self._pending.append((order, total))
        return indices if order is None else order

    def _order(self, indices: Any, total: int) -> Order | None:
        verdict = self._verdict
        if total < self._place.size or (verdict.is_shared is False and not self._needs_order(verdict)):
            return None
        own = share(total, self._place.rank, self._place.size)
        self._asked += 1
        seed = int(self._iterator._base_seed), self._asked  # noqa: SLF001
        if verdict.is_shared is None:
            return Order(indices, own, "try", seed if self._loading.seeds_samples else None)
        if verdict.is_shared or (self._is_sliced and verdict.rows):
            return Order(indices, own, "share", seed if verdict.draws else None)
        return Order(indices, own, "whole")

    def _needs_order(self, verdict: Verdict) -> bool:
        """Return whether batches that are not shared are more than what torch would load."""
        return verdict.has_fewer_workers or (self._is_sliced and bool(verdict.rows))

    def next(self, load: Callable[[], Any]) -> Any:
        """Return the next batch, which `load` gives as it was ordered, or this rank's slice of it."""
        if not self._is_sliced:
            if self._slicing is not None:
                self._slicing.gives(None)
            return self._next(load)[0]
        assert self._slicing is not None
        try:
            batch, order, total = self._next(load)
        except StopIteration:
            self._slicing.ends(self._site, self._backwards)
            raise
        if order is None:
            total = next((len(tensor) for _, tensor in leaves(batch) if tensor.dim()), total)
        if total < self._place.size:
            self._slicing.gives(None)
            return batch
        self._slicing.gives(total)
        return batch if order is not None and order.what == "share" else self._slice(batch, total)

    def _slice(self, batch: Any, total: int) -> Any:
        """Return this rank's rows of a batch.

        Raises:
            UsageError: it is made of something else.
        """
        if rows_of(batch, total) is None:
            raise UsageError(
                f"--split loader cannot cut the batches of the loader at {self._site}, which are not made of "
                "tensors with a row for each sample. Run with --split call."
            )
        own = share(total, self._place.rank, self._place.size)

        def cut(_: Path, tensor: Tensor) -> Tensor:
            return tensor[own.start : own.stop]

        return mapped(batch, cut)

    def _next(self, load: Callable[[], Any]) -> tuple[Any, Order | None, int]:
        """Return a batch, how it was ordered, and how many samples it has."""
        try:
            loaded = load()
        except Exception as error:
            order, total = self._pending.popleft() if self._pending else (None, 0)
            if order is None or order.what != "share" or self._is_sliced:
                raise
            return self._together(order, Loaded(None), error), order, total
        order, total = self._pending.popleft()
        return (loaded if order is None else self._given(order, loaded)), order, total

    def _given(self, order: Order, loaded: Loaded) -> Any:
        """Return the batch that came of an order; a share as it is, where the script is to have it."""
        if order.what == "share" and self._is_sliced:
            if loaded.refused:
                raise self._too_late()
            return loaded.data
        if order.what == "share":
            return self._together(order, loaded, None)
        if order.what == "try" and self._verdict.is_shared is None and self._is_here():
            self._loading.judge(self._verdict, loaded, len(order.indices))
            self._note()
        if order.what == "whole" and loaded.refused:
            raise self._too_late()
        return loaded.data

    def _is_here(self) -> bool:
        """Return whether the calling thread is the one that talks to the other ranks."""
        return threading.get_ident() == self._thread

    def _together(self, order: Order, loaded: Loaded, error: Exception | None) -> Any:
        """Return the batch that is made of all ranks' shares."""
        if not self._is_here():
            raise UsageError(
                f"the loader at {self._site} is read by another thread than before. Run with --load "
                "replicated."
            )
        world, rows, total = self._loading.world, self._verdict.rows, len(order.indices)
        status = GOOD
        if error is not None:
            status = FAILED
        elif loaded.refused or rows_of(loaded.data, len(order.own)) != rows:
            status = UNLIKE
        messages = exchange(world, rows, total, loaded.data, status)
        said = statuses(messages)
        if all(one == GOOD for one in said):
            return self._pinned(put_together(messages, rows, total, loaded.data))
        return self._loaded_whole(order, error, unlike=UNLIKE in said)

    def _loaded_whole(self, order: Order, error: Exception | None, *, unlike: bool) -> Any:
        """Load a batch of which some share could not be loaded, as one worker would.

        Raises:
            UsageError: its worker process has gone on already.
        """
        fetcher = getattr(self._iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            if unlike:
                self._verdict.refuse("a later batch draws random numbers, or has another form")
                self._note()
            return self._pinned(fetcher.fetch(order.indices))
        if unlike:
            raise self._too_late()
        errors = self._loading.world.all_gather_objects(error)
        raise next(one for one in errors if one is not None)

    def _too_late(self) -> UsageError:
        return UsageError(
            f"the loader at {self._site} gives a batch that draws random numbers in loading, or has another "
            "form, as its first batches had not. Run with --load replicated."
        )

    def _pinned(self, batch: Any) -> Any:
        iterator: Any = self._iterator
        if not iterator._pin_memory:  # noqa: SLF001 - of torch's own
            return batch
        return pin_memory(batch, iterator._pin_memory_device)  # type: ignore[no-untyped-call]  # noqa: SLF001


@contextmanager
def reading_in_shares(loading: Loading, slicing: Slicing | None = None) -> Iterator[None]:
    """Within, the calling thread's loaders go through `loading`, and `slicing` is told of slices."""
    token = _loading.set((loading, slicing))
    try:
        yield
    finally:
        _loading.reset(token)


@contextmanager
def loaders_in_shares() -> Iterator[None]:
    """Have all data loaders of this process look whether they are read in shares."""
    get_iterator: Callable[[Any], Any] = DataLoader._get_iterator  # noqa: SLF001 - no public spelling
    begin: Callable[..., None] = LoaderIterator.__init__
    begin_again: Callable[..., None] = LoaderIterator._reset  # noqa: SLF001
    next_index: Callable[[Any], Any] = LoaderIterator._next_index  # noqa: SLF001
    next_batch: Callable[[Any], Any] = LoaderIterator.__next__

    def capped(loader: Any) -> Any:
        current = _loading.get()
        asked = loader.num_workers
        if current is not None:
            loader.num_workers = current[0].workers(loader)
        try:
            return get_iterator(loader)
        finally:
            loader.num_workers = asked

    def begun(iterator: Any, loader: Any) -> None:
        begin(iterator, loader)
        current = _loading.get()
        iterator.samestep_reading = (
            None if current is None else Reading(current[0], loader, iterator, current[1])
        )

    def begun_again(iterator: Any, *args: Any, **kwargs: Any) -> None:
        begin_again(iterator, *args, **kwargs)
        reading: Reading | None = getattr(iterator, "samestep_reading", None)
        if reading is not None:
            reading.begin()

    def ordered(iterator: Any) -> Any:
        indices = next_index(iterator)
        reading: Reading | None = getattr(iterator, "samestep_reading", None)
        return indices if reading is None else reading.order(indices)

    def together(iterator: Any) -> Any:
        reading: Reading | None = getattr(iterator, "samestep_reading", None)
        return next_batch(iterator) if reading is None else reading.next(lambda: next_batch(iterator))

    with ExitStack() as stack:
        stack.enter_context(taking_orders())
        stack.enter_context(patch.object(DataLoader, "_get_iterator", capped))
        stack.enter_context(patch.object(LoaderIterator, "__init__", begun))
        stack.enter_context(patch.object(LoaderIterator, "_reset", begun_again))
        stack.enter_context(patch.object(LoaderIterator, "_next_index", ordered))
        stack.enter_context(patch.object(LoaderIterator, "__next__", together))
        yield
