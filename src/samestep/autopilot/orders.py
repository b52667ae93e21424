"""What a data loader, or its worker process, is told to load: a batch on trial, a share of one, or all of it.

An order takes the place of the list of indices that a loader hands to its fetcher. This runs in the processes
of the loader's workers, which talk to no other rank.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

from samestep.autopilot.reads import state_of
from samestep.autopilot.rows import Row, rows_of, same_rows
from samestep.watch.drawn import RngState

DRAWS = "loading a sample draws random numbers"
CHANGES = "loading a sample changes the data set"
NO_ROWS = "its batches are not made of tensors with a row for each sample"
COLLATE_DRAWS = "its collate function draws random numbers"
NOT_BY_ROWS = "its collate function makes something else of a part of a batch"
_CPU = torch.device("cpu")
Fetch: TypeAlias = Callable[[Fetcher, Any], Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One batch to load.

    Args:
        indices: of all its samples.
        own: which of them are this rank's.
        what: ``try`` loads it whole, and its share as well to compare; ``share`` and ``whole`` are for later
            batches, and only look whether random numbers are drawn after all.
        seed: what each sample's random numbers are made of, beside its place in the batch; None where they
            come from the process's generators.
    """

    indices: Sequence[Any]
    own: range
    what: Literal["try", "share", "whole"]
    seed: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Samples of the whole batch, as of the list of indices whose place it takes."""
        return len(self.indices)


class Loaded(NamedTuple):
    """What came of an order; a named tuple, which a loader can pin."""

    data: Any
    refused: str = ""
    """Why shares of batches cannot be loaded alone."""
    rows: tuple[Row, ...] = ()
    """What the batches are made of; nothing where it is not known yet."""
    whole_s: float = 0.0
    share_s: float = 0.0
    draws: bool = False
    """Whether samples draw random numbers."""


@contextmanager
def taking_orders() -> Iterator[None]:
    """Let the fetchers of this process, and of those forked from it, take orders as well as indices."""
    original: Fetch = Fetcher.fetch

    def fetch(fetcher: Fetcher, order: Any) -> Any:
        if not isinstance(order, Order):
            return original(fetcher, order)
        if order.what == "try":
            return _Trial(original, fetcher, order).run()
        places = order.own if order.what == "share" else range(len(order.indices))
        with _Untouched() as generators:
            if order.seed is not None:
                return Loaded(_seeded(fetcher, order, places))
            data = original(fetcher, [order.indices[place] for place in places])
        return Loaded(data, DRAWS if generators.drew else "")

    with patch.object(Fetcher, "fetch", fetch):
        yield


class _Untouched:
    """A block after which the process's generators stand where they stood before."""

    drew = False

    def __enter__(self) -> "_Untouched":
        self._before = RngState.now(_CPU)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drew = not self._before.same(RngState.now(_CPU))
        if self.drew:
            self._before.restore()


class _Trial:
    """A batch loaded whole, and what can be learnt from it."""

    def __init__(self, fetch: Fetch, fetcher: Fetcher, order: Order) -> None:
        self._fetch, self._fetcher, self._order = fetch, fetcher, order
        self._samples_drawn: RngState | None = None

    def run(self) -> Loaded:
        """Load the batch, then this rank's share, and compare."""
        fetcher, order = self._fetcher, self._order
        is_first = not hasattr(fetcher, "samestep_loaded")
        fetcher.samestep_loaded = True  # type: ignore[attr-defined]
        state = state_of(fetcher.dataset, fetcher.collate_fn)
        before = RngState.now(_CPU)
        with patch.object(fetcher, "collate_fn", self._noticing(fetcher.collate_fn)):
            whole_s, data = _timed(lambda: self._fetch(fetcher, order.indices))
        drawn = RngState.now(_CPU)
        if state_of(fetcher.dataset, fetcher.collate_fn) != state:
            # The first batch of a process may open files, which the next ones find open.
            return Loaded(data, "" if is_first else CHANGES)
        rows = rows_of(data, len(order.indices))
        if rows is None:
            return Loaded(data, NO_ROWS)
        if self._samples_drawn is None or not drawn.same(self._samples_drawn):
            return Loaded(data, COLLATE_DRAWS)
        draws = not drawn.same(before)
        if draws and order.seed is None:
            return Loaded(data, DRAWS)
        share_s = self._compare(data, rows, seeded=draws)
        if share_s is None:
            return Loaded(data, NOT_BY_ROWS)
        return Loaded(data, "", rows, whole_s, share_s, draws)

    def _noticing(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noticing(samples: Any) -> Any:
            self._samples_drawn = RngState.now(_CPU)
            return collate(samples)

        return noticing

    def _compare(self, whole: Any, rows: tuple[Row, ...], *, seeded: bool) -> float | None:
        """Return the seconds it takes to load the share; None if it is not made of rows of the whole."""
        fetcher, order = self._fetcher, self._order
        with _Untouched():
            try:
                if seeded:
                    whole = _seeded(fetcher, order, range(len(order.indices)))
                    share_s, part = _timed(lambda: _seeded(fetcher, order, order.own))
                else:
                    own = [order.indices[place] for place in order.own]
                    share_s, part = _timed(lambda: self._fetch(fetcher, own))
            except Exception:  # noqa: BLE001 - a part of a batch may be anything to a collate function
                return None
        return (
            share_s if rows_of(part, len(order.own)) == rows and same_rows(whole, order.own, part) else None
        )


def _seeded(fetcher: Fetcher, order: Order, places: Iterable[int]) -> Any:
    """Load some samples of a batch, each with random numbers of its own; the generators are left anywhere."""
    samples = []
    for place in places:
        digest = blake2b(repr((order.seed, place)).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big") >> 1
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        samples.append(fetcher.dataset[order.indices[place]])
    return fetcher.collate_fn(samples)


def _timed(load: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    data = load()
    return time.perf_counter() - started, data
