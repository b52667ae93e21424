"""Shards the data loading of a script: each rank loads its share of a batch, and gathers the others.

The loader draws the same indices on every rank. The indices of a batch are sharded here, in the order of the
batches, and the samples are gathered when the script gets the batch::

    indices      3 1 4 1 5 9            on every rank
    loaded       3 1 4 | 1 5 9          on rank 0 | on rank 1
    the script   3 1 4 1 5 9            on every rank, bit for bit the unsharded batch
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

from samestep.autopilot.loading import row_gather
from samestep.autopilot.loading.fetch_requests import FetchRequest, FetchResult, extended_fetchers
from samestep.autopilot.loading.load_choice import ScriptLoaders
from samestep.autopilot.loading.loader_split import Slicing
from samestep.autopilot.script.call_account import calling_site
from samestep.base.context_values import bound
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.parallel.sharding.share import share

_loading: ContextVar[tuple[ScriptLoaders, Slicing | None] | None] = ContextVar(
    "samestep_loading", default=None
)


SLICED = "the loop runs on each worker's slice of a batch"
"""The status of a loader under ``--split loader``."""


class LoaderPass:
    """One pass over a loader."""

    def __init__(
        self,
        loading: ScriptLoaders,
        loader: DataLoader[Any],
        iterator: LoaderIterator,
        slicing: Slicing | None,
    ) -> None:
        self._loading, self._slicing = loading, slicing
        # The iterator refers to this object. The garbage collector would free a cycle, and close the queues
        # before torch ends its worker processes through them; torch then waits 5 s for each process.
        self._iterator = weakref.proxy(iterator)
        self._place = loading.world.place
        self._device = torch.device("cpu") if iterator._num_workers else loading.world.device  # noqa: SLF001
        self._verdict = loading.verdict(loader)
        self._thread = threading.get_ident()
        self._pending: deque[tuple[FetchRequest | None, int]] = deque()
        """The requested batches and their numbers of samples; None for a batch that torch loads as usual."""
        self._requested = 0
        self.begin()

    def begin(self) -> None:
        """Begin a pass at the loader's first batch, also again with a persistent iterator."""
        self._pending.clear()
        self._site = str(calling_site())
        self._is_sliced, self._backwards = False, 0
        if self._slicing is not None:
            self._is_sliced, self._backwards = self._slicing.begin_pass(), self._slicing.backwards
        self._note()

    def _note(self) -> None:
        """Record the status of the loader in the account."""
        self._loading.note(self._site, SLICED if self._is_sliced else self._verdict)

    def request(self, indices: Any) -> Any:
        """Return the request for a batch, or its indices if torch loads it as usual."""
        total = len(indices) if isinstance(indices, list | tuple) else 0
        request = self._request(indices, total)
        self._pending.append((request, total))
        return indices if request is None else request

    def _request(self, indices: Any, total: int) -> FetchRequest | None:
        verdict = self._verdict
        # Unsharded batches are requested too, if their draws are checked or they are sliced.
        is_requested = verdict.has_fewer_workers or (self._is_sliced and bool(verdict.rows))
        if total < self._place.size or (verdict.is_shared is False and not is_requested):
            return None
        own = share(total, self._place.rank, self._place.size)
        request = partial(FetchRequest, indices, own, device=self._device)
        if not self._is_here():  # a check would restore the generators from which the script draws meanwhile
            return request("whole") if verdict.has_fewer_workers else None
        self._requested += 1
        seed = int(self._iterator._base_seed), self._requested  # noqa: SLF001
        if verdict.is_shared is None:
            return request("check", seed if self._loading.seeds_samples else None)
        if verdict.is_shared or (self._is_sliced and verdict.rows):
            return request("share", seed if verdict.draws else None)
        return request("whole")

    def next(self, load: Callable[[], Any]) -> Any:
        """Return the next batch, or this rank's slice of it; `load` returns it as requested."""
        if not self._is_sliced:
            if self._slicing is not None:
                self._slicing.record_batch(None)
            return self._next(load)[0]
        assert self._slicing is not None
        if not self._is_here():
            raise self._other_thread("--split call")
        try:
            batch, request, total = self._next(load)
        except StopIteration:
            self._slicing.end_pass(self._site, self._backwards)
            raise
        if request is None:
            total = next((len(tensor) for _, tensor in leaves(batch) if tensor.dim()), total)
        if total < self._place.size:
            self._slicing.record_batch(None)
            return batch
        self._slicing.record_batch(total)
        return batch if request is not None and request.what == "share" else self._slice(batch, total)

    def _slice(self, batch: Any, total: int) -> Any:
        """Return this rank's rows of a batch; raise `UsageError` if it has no rows of samples."""
        if row_gather.rows_of(batch, total) is None:
            raise UsageError(
                f"--split loader cannot slice the batches of the loader at {self._site}, which do not "
                "consist of tensors with one row per sample. Run with --split call."
            )
        return row_gather.own_rows(batch, share(total, self._place.rank, self._place.size))

    def _next(self, load: Callable[[], Any]) -> tuple[Any, FetchRequest | None, int]:
        """Return a batch, its request, and its number of samples."""
        try:
            loaded = load()
        except Exception as error:
            request, total = self._pending.popleft() if self._pending else (None, 0)
            if request is None or request.what != "share" or self._is_sliced:
                raise
            return self._gathered(request, FetchResult(None), error), request, total
        request, total = self._pending.popleft()
        return (loaded if request is None else self._batch_of(request, loaded)), request, total

    def _batch_of(self, request: FetchRequest, loaded: FetchResult) -> Any:
        """Return the batch of a request; a share is gathered, unless the script gets slices."""
        if request.what == "share" and self._is_sliced:
            if loaded.refused:
                raise self._too_late()
            return loaded.data
        if request.what == "share":
            return self._gathered(request, loaded, None)
        if request.what == "check" and self._verdict.is_shared is None and self._is_here():
            self._loading.judge(self._verdict, loaded, len(request.indices))
            self._note()
        if request.what == "whole" and loaded.refused:
            raise self._too_late()
        return loaded.data

    def _is_here(self) -> bool:
        """Return whether the calling thread is the one that communicates with the other ranks."""
        return threading.get_ident() == self._thread

    def _other_thread(self, option: str) -> UsageError:
        return UsageError(
            f"another thread reads the loader at {self._site} than the one that has begun the pass. Run with "
            f"{option}."
        )

    def _gathered(self, request: FetchRequest, loaded: FetchResult, error: Exception | None) -> Any:
        """Return the batch of all ranks' shares."""
        if not self._is_here():
            raise self._other_thread("--load replicated")
        world, rows, total = self._loading.world, self._verdict.rows, len(request.indices)
        status = row_gather.GOOD
        if error is not None:
            status = row_gather.FAILED
        elif loaded.refused or row_gather.rows_of(loaded.data, len(request.own)) != rows:
            status = row_gather.MISMATCH
        messages = row_gather.gather_rows(world, rows, total, loaded.data, status)
        found = [int(message[0]) for message in messages]
        if all(one == row_gather.GOOD for one in found):
            return self._pinned(row_gather.batch_of_rows(messages, rows, total, loaded.data))
        return self._loaded_in_full(request, error, mismatch=row_gather.MISMATCH in found)

    def _loaded_in_full(self, request: FetchRequest, error: Exception | None, *, mismatch: bool) -> Any:
        """Load a batch on every rank in full, after a share has failed; raise if it is too late for that."""
        fetcher = getattr(self._iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            if mismatch:
                self._verdict.refuse("a later batch draws random numbers, or has another form")
                self._note()
            return self._pinned(fetcher.fetch(request.indices))
        if mismatch:
            raise self._too_late()
        errors = self._loading.world.all_gather_objects(error)
        raise next(one for one in errors if one is not None)

    def _too_late(self) -> UsageError:
        return UsageError(
            f"a later batch of the loader at {self._site} draws random numbers while it is loaded, or has "
            "another form than its first batches. Run with --load replicated."
        )

    def _pinned(self, batch: Any) -> Any:
        iterator: Any = self._iterator
        if not iterator._pin_memory:  # noqa: SLF001 - no public spelling
            return batch
        return pin_memory(batch, iterator._pin_memory_device)  # type: ignore[no-untyped-call]  # noqa: SLF001


def sharded_loading(loading: ScriptLoaders, slicing: Slicing | None = None) -> AbstractContextManager[None]:
    """Shard the calling thread's loaders by `loading`; with `slicing`, the script gets slices."""
    return bound(_loading, (loading, slicing))


def load_alone() -> None:
    """Shard no loader of this thread any more, as in a process that the script has forked."""
    _loading.set(None)


@contextmanager
def intercepted_loaders() -> Iterator[None]:
    """Replace methods of torch's loaders, so that `sharded_loading` can shard them."""

    def capped(get_iterator: Callable[[Any], Any], loader: Any) -> Any:
        current = _loading.get()
        requested = loader.num_workers
        if current is not None:
            loader.num_workers = current[0].workers(loader)
        try:
            return get_iterator(loader)
        finally:
            loader.num_workers = requested

    def begun(begin: Callable[..., None], iterator: Any, loader: Any) -> None:
        begin(iterator, loader)
        current = _loading.get()
        iterator.samestep_pass = current and LoaderPass(current[0], loader, iterator, current[1])

    def begun_again(begin_again: Callable[..., None], iterator: Any, *args: Any, **kwargs: Any) -> None:
        begin_again(iterator, *args, **kwargs)
        if (reading := getattr(iterator, "samestep_pass", None)) is not None:
            reading.begin()

    def ordered(next_index: Callable[[Any], Any], iterator: Any) -> Any:
        indices = next_index(iterator)
        reading: LoaderPass | None = getattr(iterator, "samestep_pass", None)
        return indices if reading is None else reading.request(indices)

    def gathered(next_batch: Callable[[Any], Any], iterator: Any) -> Any:
        reading: LoaderPass | None = getattr(iterator, "samestep_pass", None)
        return next_batch(iterator) if reading is None else reading.next(lambda: next_batch(iterator))

    hooks = {
        declarations.LOADER_ITERATOR: wrapping(capped),
        declarations.ITERATOR_INIT: wrapping(begun),
        declarations.ITERATOR_RESET: wrapping(begun_again),
        declarations.ITERATOR_INDEX: wrapping(ordered),
        declarations.ITERATOR_NEXT: wrapping(gathered),
    }
    with extended_fetchers(), attached_all(hooks):
        yield
