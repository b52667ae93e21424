"""Loads a batch by a fetch request: to check it, only this rank's share of it, or all of it.

A request replaces the list of indices that a loader passes to its fetcher. This runs in the worker processes
of the loader, which do not communicate with other ranks.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

from samestep.autopilot.loading.row_gather import Row, rows_of, same_rows
from samestep.autopilot.script.call_account import is_internal_code
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState, seed_generators
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
    """A request to load one batch."""

    indices: Sequence[Any]  # of all samples of the batch
    own: range  # the positions of this rank's samples
    # ``check`` loads the batch, and this rank's share too for a comparison; ``share`` and ``whole`` load
    # later batches, and only check that no random numbers are drawn
    what: Literal["check", "share", "whole"]
    # the seed of each sample's random numbers, together with its position in the batch; None if they come
    # from the generators of the process
    seed: tuple[int, int] | None = None
    # the device whose generator samples may draw from; worker processes have forked, and can use none
    device: torch.device = _CPU

    def __len__(self) -> int:
        """Return the number of samples of the whole batch, like the list of indices."""
        return len(self.indices)


class FetchResult(NamedTuple):
    """The result of a request; a named tuple, which a loader can pin."""

    data: Any
    refused: str = ""  # the reason why shares cannot be loaded separately; empty if they can
    rows: tuple[Row, ...] = ()  # the form of the batches; empty if it is unknown
    whole_s: float = 0.0
    share_s: float = 0.0
    draws: bool = False  # whether samples draw random numbers


@contextmanager
def extended_fetchers() -> Iterator[None]:
    """Let the fetchers of this process and its forked processes accept requests as well as indices."""

    def fetch(original: Fetch, fetcher: Fetcher, request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return original(fetcher, request)
        if request.what == "check":
            return _ShareCheck(original, fetcher, request).run()
        places = request.own if request.what == "share" else range(len(request.indices))
        with _preserved_generators(request.device) as has_drawn:
            if request.seed is not None:
                return FetchResult(_seeded(fetcher, request, places))
            data = original(fetcher, [request.indices[place] for place in places])
            return FetchResult(data, DRAWS if has_drawn() else "")

    with attached(declarations.FETCH_REQUEST, wrapping(fetch)):
        yield


@contextmanager
def _preserved_generators(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Restore the generators of the process; yield a function that returns whether the block has drawn."""
    before = RngState.now(device)
    try:
        yield lambda: not before.same(RngState.now(device))
    finally:
        if not before.same(RngState.now(device)):
            before.restore()


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
        before = RngState.now(request.device)
        collate = fetcher.collate_fn
        fetcher.collate_fn = self._recording(collate)
        try:
            whole_s, data = _timed(lambda: self._fetch(fetcher, request.indices))
        finally:
            fetcher.collate_fn = collate
        drawn = RngState.now(request.device)
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
            self._samples_drawn = RngState.now(self._request.device)
            return collate(samples)

        return recording

    def _compare(self, whole: Any, rows: tuple[Row, ...], *, seeded: bool) -> float | None:
        """Return the seconds to load the share; None if it does not equal the rows of the batch."""
        fetcher, request = self._fetcher, self._request
        with _preserved_generators(request.device):
            try:
                if seeded:
                    whole = _seeded(fetcher, request, range(len(request.indices)))
                    share_s, part = _timed(lambda: _seeded(fetcher, request, request.own))
                else:
                    own = [request.indices[place] for place in request.own]
                    share_s, part = _timed(lambda: self._fetch(fetcher, own))
            except Exception:  # noqa: BLE001 - a collate function may raise any error for a part of a batch
                return None
        is_equal = rows_of(part, len(request.own)) == rows and same_rows(whole, request.own, part)
        return share_s if is_equal else None


def _seeded(fetcher: Fetcher, request: FetchRequest, places: Iterable[int]) -> Any:
    """Load some samples of a batch, each with its own seed; do not restore the generators."""
    samples = []
    for place in places:
        digest = blake2b(repr((request.seed, place)).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big") >> 1
        seed_generators(seed, request.device)
        samples.append(fetcher.dataset[request.indices[place]])
    return fetcher.collate_fn(samples)


def _timed(load: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    data = load()
    return time.perf_counter() - started, data


_MOST = 2000  # the largest number of objects that are inspected
_OF_EACH = 64  # the largest number of elements that are inspected in a container, beside its length

State: TypeAlias = list[Any]
_READERS: Mapping[Any, Callable[[Any], Any]] = {
    random.Random: lambda one: one.getstate(),
    np.random.Generator: lambda one: repr(one.bit_generator.state),
    np.random.RandomState: lambda one: repr(one.get_state(legacy=False)),
    torch.Generator: lambda one: one.get_state().numpy().tobytes(),
    Tensor: lambda one: (id(one), one._version),  # noqa: SLF001 - the number of writes to it
    list | tuple | dict | set | frozenset: lambda one: (type(one), len(one)),
}


def state_of(*roots: Any) -> State:
    """Return the state of all objects that are reachable from `roots`, for a comparison."""
    state: State = []
    waiting, seen = list(roots), dict[int, Any]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if one is None or isinstance(one, bool | int | float | complex | str | bytes):
            state.append(one)
        elif id(one) not in seen:
            seen[id(one)] = one
            state.append(_own(one))
            waiting += _parts(one)
    return state


def _own(one: Any) -> Any:
    """Return the state of one object, without its parts."""
    return next((read(one) for kind, read in _READERS.items() if isinstance(one, kind)), id(one))


def _parts(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from islice(one.values(), _OF_EACH)
    elif isinstance(one, list | tuple | set | frozenset):
        yield from islice(one, _OF_EACH)
    elif isinstance(one, MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, FunctionType):
        yield from _named(one)
    elif not isinstance(one, ModuleType | type | Tensor):
        yield from getattr(one, "__dict__", {}).values()
        for owner in type(one).__mro__:
            yield from (part for part in vars(owner).values() if isinstance(part, FunctionType))


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the values of a user-defined function's closure, and the globals that it refers to."""
    if is_internal_code(function.__code__.co_filename):
        return
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
