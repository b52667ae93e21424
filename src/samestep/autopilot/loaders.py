"""The data loaders of a script, read in shares.

The loader of each rank's copy draws the same indices. What it fetches for a batch is cut here, in the order
in which batches are asked for, and put together when the script gets the batch::

    indices      3 1 4 1 5 9            on every rank
    loaded       3 1 4 | 1 5 9          on rank 0 | on rank 1
    the script   3 1 4 1 5 9            on every rank, with the bits of the whole
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

from samestep.autopilot.account import calling_site
from samestep.autopilot.loading import Loading
from samestep.autopilot.orders import Loaded, Order, taking_orders
from samestep.autopilot.rows import FAILED, GOOD, UNLIKE, exchange, put_together, rows_of, statuses
from samestep.base.errors import UsageError
from samestep.sharding.share import share

_loading: ContextVar[Loading | None] = ContextVar("samestep_loading", default=None)


class Reading:
    """One iterator of a loader.

    Args:
        loading: what is known of loaders.
        loader: this one.
        iterator: its iterator.
    """

    def __init__(self, loading: Loading, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
        self._loading, self._iterator = loading, iterator
        self._place = loading.world.place
        self._verdict = loading.verdict(loader)
        self._thread = threading.get_ident()
        self._pending: deque[Order | None] = deque()
        """Batches that were asked for and not given yet; None for those that are loaded as they are."""
        self._asked = 0
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again, at the loader's first batch."""
        self._pending.clear()
        self._site = str(calling_site())
        self._loading.note(self._site, self._verdict)

    def order(self, indices: Any) -> Any:
        """Return what is fetched for a batch."""
        order = self._order(indices)
        self._pending.append(order)
        return indices if order is None else order

    def _order(self, indices: Any) -> Order | None:
        total = len(indices) if isinstance(indices, list | tuple) else 0
        verdict = self._verdict
        if total < self._place.size or (verdict.is_shared is False and not verdict.has_fewer_workers):
            return None
        own = share(total, self._place.rank, self._place.size)
        self._asked += 1
        seed = int(self._iterator._base_seed), self._asked  # noqa: SLF001
        if verdict.is_shared is None:
            return Order(indices, own, "try", seed if self._loading.seeds_samples else None)
        if verdict.is_shared:
            return Order(indices, own, "share", seed if verdict.draws else None)
        return Order(indices, own, "whole")

    def next(self, load: Callable[[], Any]) -> Any:
        """Return the next batch, which `load` gives as it was ordered."""
        try:
            loaded = load()
        except Exception as error:
            order = self._pending.popleft() if self._pending else None
            if order is None or order.what != "share":
                raise
            return self._together(order, Loaded(None), error)
        order = self._pending.popleft()
        if order is None:
            return loaded
        if order.what == "share":
            return self._together(order, loaded, None)
        if order.what == "try" and self._verdict.is_shared is None and self._is_here():
            self._loading.judge(self._verdict, loaded, len(order.indices))
            self._loading.note(self._site, self._verdict)
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
                self._loading.note(self._site, self._verdict)
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
def reading_in_shares(loading: Loading) -> Iterator[None]:
    """Within, the calling thread's loaders go through `loading`."""
    token = _loading.set(loading)
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
        loading = _loading.get()
        asked = loader.num_workers
        if loading is not None:
            loader.num_workers = loading.workers(loader)
        try:
            return get_iterator(loader)
        finally:
            loader.num_workers = asked

    def begun(iterator: Any, loader: Any) -> None:
        begin(iterator, loader)
        loading = _loading.get()
        iterator.samestep_reading = None if loading is None else Reading(loading, loader, iterator)

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
