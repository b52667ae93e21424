"""Notes loaders that deliver one sample of each batch, and drop the others while they collate it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils.data import get_worker_info

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import is_script
from samestep.verify.observers.check import Check, in_words
from samestep.verify.trace import Note, Place

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
            id(fetcher.dataset), _Collated(fetcher.dataset, _place_of(fetcher.collate_fn))
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
    if type(value) is Tensor and not value.is_sparse and not value.is_complex():
        yield value.detach().double().cpu().numpy()
    elif isinstance(value, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(value)
        yield array if array.dtype.kind in "biuf" else None
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from _numbers(part)
    else:
        yield None


def _place_of(collate: Any) -> Place | None:
    """Return the line of a function, or of the method that calls an object; None for one of a library."""
    method = vars(type(collate)).get("__call__")
    code = getattr(collate, "__code__", None) or getattr(method, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code and is_script(code.co_filename) else None
