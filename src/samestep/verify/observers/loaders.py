"""Notes loaders whose workers draw the same numbers, whose epochs have one order, or which drop samples.

Such a loader delivers one sample of each batch, and drops the others while it collates it.
"""

import json
import os
import pickle
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils.data import DistributedSampler, get_worker_info

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.object_graph import Parts, stored_in, walk
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import current_place, is_script, place_of_code
from samestep.verify.observers.check import Check, in_words, with_forked_workers
from samestep.verify.rank_features import plain_index
from samestep.verify.tensor_summary import is_plain
from samestep.verify.trace import Note, Place

_LEAST_STATES = 3
"""States of a generator that two workers must share: a data set may seed one alike for each sample."""
_MOST_FETCHES = 16  # fetches of a worker after which its generators are not inspected any more: a guess
_DEEPEST, _LONGEST = 4, 64
"""Depth of objects, and length of containers, in which generators are searched: guesses."""
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
        return {
            declarations.NOTED_FETCH: wrapping(self._fetch),
            declarations.EPOCH_BEGIN: wrapping(with_forked_workers),
        }

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
        for loader, name, states, worker, line in self._received():
            place = None if line is None else (str(line[0]), int(line[1]))
            group = workers[name, (loader, *states)]
            group.add(worker)
            if len(group) > 1:
                places[name, place] = sorted(group)
        for (name, place), numbers in places.items():
            remedy = (
                "Seed it with torch.initial_seed() in worker_init_fn, or not at all"
                if name in _OF_PROCESS
                else "Each has a copy of it: make it in the worker, seeded with torch.initial_seed()"
            )
            yield Note(
                "loader-workers-draw-same",
                f"Workers {', '.join(map(str, numbers))} of a DataLoader draw the same random numbers from "
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
    names: dict[int, tuple[str, Any]] = {}
    for (_, name), value in walk([((0, type(dataset).__name__), dataset)], _parts, depth=_DEEPEST):
        if isinstance(value, _KINDS) and not isinstance(value, random.SystemRandom):
            names.setdefault(id(value), (name, value))
    python, numpy = random._inst, np.random.mtrand._rand  # noqa: SLF001
    of_process = dict(zip(_OF_PROCESS, (python, numpy, torch.default_generator), strict=True))
    return dict(names.values()) | of_process


def _parts(value: Any) -> Parts:
    """Return what a value stores, and the generators that its functions name."""
    if isinstance(value, (*_KINDS, *_WITHOUT)):
        return []
    functions = [value] if isinstance(value, FunctionType) else []
    parts = stored_in(value, most=_LONGEST)
    if is_script(_file_of(type(value))):
        functions = [method for method in vars(type(value)).values() if isinstance(method, FunctionType)]
        parts += [pair for method in functions for pair in stored_in(method)]
    return parts + [pair for function in functions for pair in _generators_named_by(function)]


def _generators_named_by(function: FunctionType) -> Parts:
    names = function.__globals__
    return [(name, names[name]) for name in function.__code__.co_names if isinstance(names.get(name), _KINDS)]


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
    return place_of_code(code) if code and is_script(code.co_filename) else None


def _file_of(kind: type) -> str:
    """Return the file of a class's methods; "<" for a class without any."""
    codes = (getattr(member, "__code__", None) for member in vars(kind).values())
    return next((code.co_filename for code in codes if code is not None), "<")


_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_WITHOUT = (Tensor, np.ndarray, nn.Module, type, ModuleType)


_COMPARED = 64  # indices of an epoch that are compared: by chance, so many are never equal
_LEAST_INDICES = 4  # indices that are equal in two epochs by chance only rarely


@dataclass(slots=True, eq=False)
class _Pass:
    """One pass over a loader."""

    sampler: str  # the class of its sampler
    place: Place | None  # the line that begins it
    indices: list[Any] = field(default_factory=list)  # its first indices
    is_trained: bool = False  # whether an optimizer has stepped in it


class SamplerEpochs(Check):
    """Compares the order of the epochs of each loader whose sampler has a `set_epoch`.

    `DistributedSampler` is none of them: its epochs are compared between the runs.
    """

    def __init__(self) -> None:
        self._passes: dict[int, list[_Pass]] = {}
        """The passes over each loader, by the id of what gives its indices; `_kept` keeps that alive."""
        self._kept: list[Any] = []
        self._last: _Pass | None = None

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {
            declarations.EPOCH_BEGIN: wrapping(self._begin),
            declarations.BATCH_INDICES: wrapping(self._next_indices),
        }

    def _begin(self, original: Callable[[Any], Any], loader: Any) -> Any:
        source = loader._index_sampler  # noqa: SLF001 - what the loader's iterator reads
        sampler = _with_epochs(source)
        if sampler is not None:
            self._kept.append(source)
            passes = self._passes.setdefault(id(source), [])
            passes.append(_Pass(type(sampler).__name__, current_place()))
        return original(loader)

    def _next_indices(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        indices = original(iterator)
        passes = self._passes.get(id(iterator._index_sampler))  # noqa: SLF001
        if passes:
            self._last = passes[-1]
            new = plain_index(indices)
            new = new if isinstance(new, list) else [new]
            self._last.indices += new[: _COMPARED - len(self._last.indices)]
        return indices

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        if self._last is not None:
            self._last.is_trained = True

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for passes in self._passes.values():
            trained = [epoch for epoch in passes if epoch.is_trained]
            if any(_have_one_order(trained[0], epoch) for epoch in trained[1:]):
                first = trained[0]
                yield Note(
                    "same-order-in-epochs",
                    f"The loop{in_words(first.place)} reads its samples in the same order in each epoch: "
                    f"{first.sampler} has a set_epoch, which is not called. Call set_epoch(epoch) before.",
                    first.place,
                )


def _with_epochs(source: Any) -> Any:
    """Return the sampler of a loader that has a `set_epoch`, of its own or in a batch sampler; else None."""
    inner = getattr(source, "sampler", None)
    for sampler in (source, inner):
        if callable(getattr(sampler, "set_epoch", None)) and not isinstance(sampler, DistributedSampler):
            return sampler
    return None


def _have_one_order(first: _Pass, second: _Pass) -> bool:
    """Return whether two epochs begin with the same indices, which are not simply in ascending order."""
    count = min(len(first.indices), len(second.indices))
    begin = first.indices[:count]
    try:
        is_sorted = begin == sorted(begin)
    except TypeError:  # keys of samples that have no order
        is_sorted = False
    return count >= _LEAST_INDICES and begin == second.indices[:count] and not is_sorted


_LEAST_BATCHES = 5  # batches of one sample that are trained on before they are noted: a guess
_MOST_VALUES = 1 << 22  # numbers in a sample up to which it is compared: a guess
Values = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Collated:
    """The batches of one data set."""

    dataset: Any  # kept, so that the id of no other data set is equal
    place: Place | None  # the line of the function that collates
    size: int = 0  # number of samples of the last batch
    position: int | None = None  # the sample that is delivered, 0 or -1; None before the first batch
    has_others: bool = False  # whether a batch had more than that sample
    steps: int = 0  # number of steps after such a batch


class RowsNotUsed(Check):
    """Compares each batch of the script's own process with the samples that it was made of.

    A batch with fewer rows than samples is right for packed sequences, graphs and selected samples. A batch
    that always has the values of the first sample alone, or of the last one, is not.
    """

    def __init__(self) -> None:
        self._datasets: dict[int, _Collated] = {}
        self._last: _Collated | None = None  # the data set of the last batch

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {declarations.NOTED_FETCH: wrapping(self._fetch)}

    def _fetch(self, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
        self._last = None
        is_batch = isinstance(indices, list) and len(indices) > 1
        if get_worker_info() is not None or not is_batch or not fetcher.auto_collation:
            return original(fetcher, indices)
        collated = self._datasets.setdefault(
            id(fetcher.dataset), _Collated(fetcher.dataset, _collating_place(fetcher.collate_fn))
        )
        if collated.has_others:
            return original(fetcher, indices)
        recording = copy(fetcher)
        recording.collate_fn = lambda samples: self._collate(collated, fetcher.collate_fn, samples)
        return original(recording, indices)

    def _collate(self, collated: _Collated, collate: Callable[..., Any], samples: Any) -> Any:
        sizes = [
            values_of(sample) for sample in (samples[0], samples[-1])
        ]  # before `collate` may change them
        batch = collate(samples)
        values = values_of(batch)
        positions = [
            position
            for position, sample in zip((0, -1), sizes, strict=True)
            if values is not None and sample is not None and np.array_equal(values, sample)
        ]
        if len(positions) == 1 and collated.position in (None, positions[0]):
            collated.position, collated.size = positions[0], len(samples)
            self._last = collated
        else:
            collated.has_others = True
        return batch

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        if self._last is not None:
            self._last.steps += 1
            self._last = None

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for collated in self._datasets.values():
            if collated.steps >= _LEAST_BATCHES and not collated.has_others:
                which = "first" if collated.position == 0 else "last"
                yield Note(
                    "rows-not-used",
                    f"collate_fn{in_words(collated.place)} returns the {which} sample alone of each batch of "
                    f"{counted(collated.size, 'sample')}: the others train nothing. Return a row for each.",
                    collated.place,
                )


def values_of(value: Any) -> Values | None:
    """Return the numbers in a sample or batch, sorted; None if it has other parts, or too many."""
    parts = list(_numbers(value))
    if any(part is None for part in parts) or not parts:
        return None
    arrays = [part.ravel() for part in parts if part is not None]
    if sum(map(len, arrays)) > _MOST_VALUES:
        return None
    return np.sort(np.concatenate(arrays).astype(np.float64))


def _numbers(value: Any) -> Iterator[NDArray[Any] | None]:
    """Yield the arrays of numbers in a value; None for a part that is something else."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if type(value) is Tensor and is_plain(value) and not value.is_complex():
        yield value.detach().double().cpu().numpy()
    elif isinstance(value, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(value)
        yield array if array.dtype.kind in "biuf" else None
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from _numbers(part)
    else:
        yield None


def _collating_place(collate: Any) -> Place | None:
    """Return the line of a function, or of the method that calls an object; None for one of a library."""
    method = vars(type(collate)).get("__call__")
    code = getattr(collate, "__code__", None) or getattr(method, "__code__", None)
    return place_of_code(code) if code and is_script(code.co_filename) else None
