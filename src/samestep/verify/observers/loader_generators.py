"""Notes workers of a DataLoader that draw the same random numbers."""

import json
import os
import pickle
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import is_script
from samestep.verify.observers.check import Check, in_words
from samestep.verify.trace import Note, Place

_LEAST_STATES = 3
"""States of a generator that two workers must share: a data set may seed one alike for each sample."""
_MOST_FETCHES = 16  # fetches of a worker after which its generators are not inspected any more
_DEEPEST = 5
_LONGEST = 64  # depth of objects, and length of containers, in which generators are searched
_OF_PROCESS = ("Python", "NumPy", "torch")
Generators: TypeAlias = dict[str, Any]


class LoaderGenerators(Check):
    """Compares the states of generators between the workers of a loader.

    The loader seeds the generators of each worker process apart, but every worker has the same copy of one
    that the data set or the script has made. Each worker writes the states to a pipe. Streams of samples
    (`IterableDataset`) are not inspected: their workers may draw alike to split one order among them.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._states: dict[str, list[int]] = defaultdict(list)
        """The states of each generator of this worker, without repetitions."""
        self._fetches = 0

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {declarations.DRAWING_FETCH: wrapping(self._fetch)}

    def _fetch(self, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
        worker = get_worker_info()
        if worker is None or self._fetches >= _MOST_FETCHES:
            return original(fetcher, indices)
        self._fetches += 1
        generators = generators_in(fetcher.dataset)
        self._note_states(generators)
        fetched = original(fetcher, indices)
        for name in self._note_states(generators):
            if len(self._states[name]) == _LEAST_STATES:
                self._send(worker, name, fetcher.dataset)
        return fetched

    def _note_states(self, generators: Generators) -> list[str]:
        """Add the states of generators that have changed, and return their names."""
        changed = []
        for name, generator in generators.items():
            state, states = _digest(generator), self._states[name]
            if not states or states[-1] != state:
                states.append(state)
                changed.append(name)
        return changed

    def _send(self, worker: Any, name: str, dataset: Any) -> None:
        """Send the states of a generator to the script's process, unless the pipe is full."""
        loader = worker.seed - worker.id
        line = [loader, name, self._states[name], worker.id, _place_of(dataset)]
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._writer, json.dumps(line).encode() + b"\n")

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        workers: dict[tuple[str, Any], set[int]] = defaultdict(set)
        places: dict[tuple[str, Place | None], list[int]] = {}
        for loader, name, states, worker, found in self._received():
            place = None if found is None else (str(found[0]), int(found[1]))
            group = workers[name, (loader, *states)]
            group.add(worker)
            if len(group) > 1:
                places[name, place] = sorted(group)
        for (name, place), alike in places.items():
            remedy = (
                "Seed it with torch.initial_seed() in worker_init_fn, or not at all"
                if name in _OF_PROCESS
                else "Each has a copy of it: make it in the worker, seeded with torch.initial_seed()"
            )
            yield Note(
                "loader-workers-draw-same",
                f"Workers {', '.join(map(str, alike))} of a DataLoader draw the same random numbers from "
                f"{name}{in_words(place)}. {remedy}.",
                place,
            )

    def _received(self) -> Iterator[Any]:
        """Yield what the workers have sent."""
        text = b""
        with suppress(BlockingIOError):
            while part := os.read(self._reader, 1 << 16):
                text += part
        for line in text.splitlines():
            yield json.loads(line)


def generators_in(dataset: Any) -> Generators:
    """Return the random generators that a data set can draw from, by name: its own, and the process's."""
    found: Generators = {}
    _search(dataset, type(dataset).__name__, found, set(), _DEEPEST)
    python, numpy = random._inst, np.random.mtrand._rand  # noqa: SLF001
    return found | dict(zip(_OF_PROCESS, (python, numpy, torch.default_generator), strict=True))


def _search(value: Any, name: str, found: Generators, seen: set[int], depth: int) -> None:
    if id(value) in seen or not depth or isinstance(value, _WITHOUT):
        return
    seen.add(id(value))
    if isinstance(value, _KINDS):
        if not isinstance(value, random.SystemRandom):
            found.setdefault(name, value)
        return
    for key, part in _parts(value):
        _search(part, f"{name}.{key}", found, seen, depth - 1)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a value refers to: items, attributes, and the generators that its functions name."""
    if isinstance(value, list | tuple | dict):
        if len(value) <= _LONGEST:
            yield from value.items() if isinstance(value, dict) else enumerate(value)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    else:
        if is_script(_file_of(type(value))):
            for method in vars(type(value)).values():
                if isinstance(method, FunctionType):
                    yield from _of_function(method)
        yield from vars(value).items() if hasattr(value, "__dict__") else ()


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name in code.co_names:
        if isinstance(function.__globals__.get(name), _KINDS):
            yield name, function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents


def _digest(generator: Any) -> int:
    """Return a digest of a generator's state."""
    if isinstance(generator, torch.Generator):
        return zlib.crc32(generator.get_state().numpy().tobytes())
    if isinstance(generator, np.random.Generator):
        state: Any = generator.bit_generator.state
    else:
        state = (
            generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
        )
    return zlib.crc32(pickle.dumps(state))


def _place_of(dataset: Any) -> Place | None:
    """Return the line of `__getitem__` of a data set, or of the one inside of a `Subset`."""
    while not is_script(_file_of(type(dataset))) and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code and is_script(code.co_filename) else None


def _file_of(kind: type) -> str:
    """Return the file of a class's methods; "<" for a class without any."""
    codes = (getattr(one, "__code__", None) for one in vars(kind).values())
    return next((code.co_filename for code in codes if code is not None), "<")


_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_WITHOUT = (str, bytes, int, float, type(None), Tensor, np.ndarray, nn.Module, type, ModuleType)
