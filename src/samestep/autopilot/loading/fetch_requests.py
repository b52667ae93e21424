"""Loads a batch by a fetch request: to check it, only this rank's share of it, or all of it.

A request replaces the list of indices that a loader passes to its fetcher. This runs in the worker processes
of the loader, which do not communicate with other ranks.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

from samestep.autopilot.loading.dataset_state import state_of
from samestep.autopilot.loading.row_gather import Row, rows_of, same_rows
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached, wrapping

DRAWS = "loading a sample draws random numbers"
CHANGES = "loading a sample changes the data set"
NO_ROWS = "its batches do not consist of tensors with one row per sample"
COLLATE_DRAWS = "its collate function draws random numbers"
NOT_BY_ROWS = "its collate function gives another result for a part of a batch"
_CPU = torch.device("cpu")
Fetch: TypeAlias = Callable[[Fetcher, Any], Any]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request to load one batch.

    Args:
        indices: of all samples of the batch.
        own: the positions of this rank's samples.
        what: ``check`` loads the batch, and this rank's share too for a comparison; ``share`` and ``whole``
            load later batches, and only check that no random numbers are drawn.
        seed: the seed of each sample's random numbers, together with its position in the batch; None if they
            come from the generators of the process.
    """

    indices: Sequence[Any]
    own: range
    what: Literal["check", "share", "whole"]
    seed: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Return the number of samples of the whole batch, like the list of indices."""
        return len(self.indices)


class FetchResult(NamedTuple):
    """The result of a request; a named tuple, which a loader can pin."""

    data: Any
    refused: str = ""
    """The reason why shares cannot be loaded separately; empty if they can."""
    rows: tuple[Row, ...] = ()
    """The form of the batches; empty if it is unknown."""
    whole_s: float = 0.0
    share_s: float = 0.0
    draws: bool = False
    """Whether samples draw random numbers."""


@contextmanager
def extended_fetchers() -> Iterator[None]:
    """Let the fetchers of this process and its forked processes accept requests as well as indices."""

    def fetch(original: Fetch, fetcher: Fetcher, request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return original(fetcher, request)
        if request.what == "check":
            return _ShareCheck(original, fetcher, request).run()
        places = request.own if request.what == "share" else range(len(request.indices))
        with _PreservedGenerators() as generators:
            if request.seed is not None:
                return FetchResult(_seeded(fetcher, request, places))
            data = original(fetcher, [request.indices[place] for place in places])
        return FetchResult(data, DRAWS if generators.drew else "")

    with attached(declarations.FETCH_REQUEST, wrapping(fetch)):
        yield


class _PreservedGenerators:
    """A context that restores the generators of the process at its end."""

    drew = False

    def __enter__(self) -> "_PreservedGenerators":
        self._before = RngState.now(_CPU)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drew = not self._before.same(RngState.now(_CPU))
        if self.drew:
            self._before.restore()


class _ShareCheck:
    """Checks with one batch whether shares can be loaded separately."""

    def __init__(self, fetch: Fetch, fetcher: Fetcher, request: FetchRequest) -> None:
        self._fetch, self._fetcher, self._request = fetch, fetcher, request
        self._samples_drawn: RngState | None = None

    def run(self) -> FetchResult:
        """Load the batch, then this rank's share, and compare."""
        fetcher, request = self._fetcher, self._request
        is_first = not hasattr(fetcher, "samestep_loaded")
        fetcher.samestep_loaded = True  # type: ignore[attr-defined]
        state = state_of(fetcher.dataset, fetcher.collate_fn)
        before = RngState.now(_CPU)
        collate = fetcher.collate_fn
        fetcher.collate_fn = self._recording(collate)
        try:
            whole_s, data = _timed(lambda: self._fetch(fetcher, request.indices))
        finally:
            fetcher.collate_fn = collate
        drawn = RngState.now(_CPU)
        if state_of(fetcher.dataset, fetcher.collate_fn) != state:
            # The first batch of a process may open files, which then stay open.
            return FetchResult(data, "" if is_first else CHANGES)
        rows = rows_of(data, len(request.indices))
        if rows is None:
            return FetchResult(data, NO_ROWS)
        if self._samples_drawn is None or not drawn.same(self._samples_drawn):
            return FetchResult(data, COLLATE_DRAWS)
        draws = not drawn.same(before)
        if draws and request.seed is None:
            return FetchResult(data, DRAWS)
        share_s = self._compare(data, rows, seeded=draws)
        if share_s is None:
            return FetchResult(data, NOT_BY_ROWS)
        return FetchResult(data, "", rows, whole_s, share_s, draws)

    def _recording(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def recording(samples: Any) -> Any:
            self._samples_drawn = RngState.now(_CPU)
            return collate(samples)

        return recording

    def _compare(self, whole: Any, rows: tuple[Row, ...], *, seeded: bool) -> float | None:
        """Return the seconds to load the share; None if it does not equal the rows of the batch."""
        fetcher, request = self._fetcher, self._request
        with _PreservedGenerators():
            try:
                if seeded:
                    whole = _seeded(fetcher, request, range(len(request.indices)))
                    share_s, part = _timed(lambda: _seeded(fetcher, request, request.own))
                else:
                    own = [request.indices[place] for place in request.own]
                    share_s, part = _timed(lambda: self._fetch(fetcher, own))
            except Exception:  # noqa: BLE001 - a collate function may raise any error for a part of a batch
                return None
        return (
            share_s
            if rows_of(part, len(request.own)) == rows and same_rows(whole, request.own, part)
            else None
        )


def _seeded(fetcher: Fetcher, request: FetchRequest, places: Iterable[int]) -> Any:
    """Load some samples of a batch, each with its own seed; do not restore the generators."""
    samples = []
    for place in places:
        digest = blake2b(repr((request.seed, place)).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big") >> 1
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        samples.append(fetcher.dataset[request.indices[place]])
    return fetcher.collate_fn(samples)


def _timed(load: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    data = load()
    return time.perf_counter() - started, data
