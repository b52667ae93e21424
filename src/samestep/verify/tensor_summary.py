"""Summarizes tensors by a few numbers, from which the distance of two tensors can be estimated.

A sketch adds the elements of a tensor, with random signs, into a few buckets. It is linear, so the sketch of
a difference is the difference of sketches, and its expected squared norm is that of the tensor (Charikar,
Chen and Farach-Colton, "Finding frequent items in data streams", 2002). A sample's key is the sum of its
elements with random weights: equal samples have equal keys, and different samples almost surely do not. A
`RowSummary` has numbers for each row, so that the shards of several ranks can be joined to one tensor.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

BUCKETS = 16
"""Numbers per tensor; they give the norm of a difference to about a third, better for many tensors."""
PROJECTIONS = 4
"""Numbers per row that are linear in it: products with random vectors; how many is a guess. The order of the
row's elements does not change the numbers after them."""
NUMBERS = PROJECTIONS + 3
"""All numbers per row."""
KEY_DECIMALS = 9
"""Decimals of a sample's key by which equal samples are found: a key is a sum in double precision."""
_LONGEST = 1024  # a longer sequence has no rows of its own: as many as are compared without an order
_HALF = 1e-4  # between the machine epsilon of float32, 1.2e-7, and that of float16, 9.8e-4
Rows = list[list[float]]

_OWN_SEEDS = range(0x5EED_20021, 0x5EED_20021 + 4)
"""The seeds of `verify`'s own generators, which no script has."""
_NAN, _INFINITY = 6173.25, 7919.75
"""The values of elements that are not finite in a sample's key, so that equal samples have one key: arbitrary
numbers that data rarely have."""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a tensor in a whole of which it is a part."""

    shape: tuple[int, ...]  # shape of the whole
    dim: int  # dimension along which the whole is divided
    count: int  # number of parts
    index: int  # number of this part


def sketch(tensors: Iterable[Tensor | None], places: Iterable[PartPlace | None] | None = None) -> list[float]:
    """Return `BUCKETS` numbers for each tensor, in order; zeros for None and for a tensor without values.

    Args:
        tensors: the tensors.
        places: the place of each in a whole, None for a tensor that is no part. The sketches of all parts
            add up to that of the whole.
    """
    pairs = zip(tensors, repeat(None), strict=False) if places is None else zip(tensors, places, strict=True)
    parts = [_one(tensor if place is None else _in_whole(tensor, place)) for tensor, place in pairs]
    return torch.cat(parts).tolist() if parts else []


def _in_whole(part: Tensor | None, place: PartPlace) -> Tensor | None:
    """Return the whole that has zeros where it has other parts."""
    if part is None:
        return None
    whole = torch.zeros(place.shape, dtype=torch.float64, device="cpu")
    size = place.shape[place.dim] // place.count
    whole.narrow(place.dim, place.index * size, size).copy_(_in_double(part))
    return whole


def norm(tensors: Iterable[Tensor | None]) -> float:
    """Return the 2-norm of all elements of all tensors."""
    squares = [_in_double(tensor).pow(2).sum() for tensor in tensors if tensor is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def row_keys(tensor: Tensor) -> list[float]:
    """Return a key for each sample: for each index of the first dimension; none without values."""
    keys: list[float] = []
    for rows in _samples_in(tensor):
        finite = torch.nan_to_num(rows, nan=_NAN, posinf=_INFINITY, neginf=-_INFINITY)
        keys += torch.mv(finite, _weights(rows.size(1))).tolist()
    return keys


def row_sums(tensor: Tensor) -> list[float]:
    """Return the sum of the elements of each sample; those of the parts of a sample add up to that of it."""
    return [total for rows in _samples_in(tensor) for total in torch.nan_to_num(rows).sum(1).tolist()]


def _samples_in(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the values of samples, one row each; those of a nested tensor, of unequal sizes, one by one."""
    if tensor.is_nested:
        yield from (_in_double(part).reshape(1, part.numel()) for part in tensor.unbind())
    elif has_values(tensor):
        yield _in_double(tensor).reshape(tensor.size(0), -1)


def has_values(tensor: Tensor) -> bool:
    """Return whether a tensor has values: none on the meta device, and before a lazy module's first call."""
    return not (is_lazy(tensor) or tensor.is_meta)


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is an array of numbers: dense, of one size in each dimension, with values."""
    is_array = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    return is_array and has_values(tensor)


def rounded_keys(keys: Iterable[float]) -> set[float]:
    """Return the distinct keys of samples, rounded to `KEY_DECIMALS`."""
    return {round(key, KEY_DECIMALS) for key in keys}


def is_half_epsilon(epsilon: float) -> bool:
    """Return whether a machine epsilon is one of a half type."""
    return epsilon > _HALF


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The summary of one tensor on one rank."""

    shape: Sequence[int]  # its shape
    # the numbers of each row, by the dimension along which the rows are counted
    rows: dict[int, Rows] = field(default_factory=dict)


def summarize(tensor: Tensor, samples: int) -> RowSummary:
    """Return the summary of a tensor that is computed from a number of samples.

    Rows are counted along the first dimension, and also along the second one if that has one row per sample,
    or may be a sequence, of which each rank may have a part. A value that is not finite counts as zero, so
    that a mask of infinities does not hide all others.
    """
    values = torch.nan_to_num(_in_double(tensor), nan=0.0, posinf=0.0, neginf=0.0)
    is_sequence = tensor.dim() > 2 and tensor.size(1) <= _LONGEST
    dims = [0, 1] if is_sequence or (tensor.dim() > 1 and tensor.size(1) == samples) else [0]
    return RowSummary(list(tensor.shape), {dim: _rows(values, dim) for dim in dims})


def _one(tensor: Tensor | None) -> Tensor:
    if tensor is None or not has_values(tensor) or not tensor.numel():
        return torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")
    return bucket_sums(_in_double(tensor).reshape(-1), BUCKETS, generator=0)


def bucket_sums(values: Tensor, buckets: int, *, generator: int) -> Tensor:
    """Return the sums of values, with random signs from an own generator, in some buckets."""
    signed = values * _signs(values.numel(), generator)
    padded = torch.nn.functional.pad(signed, (0, -len(signed) % buckets))
    return padded.reshape(-1, buckets).sum(0)


def _in_double(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, dense and real, in double precision on the CPU.

    Those of a `DTensor` are of all ranks, by a collective of them.
    """
    detached: Any = tensor.detach()
    if hasattr(detached, "full_tensor"):
        detached = detached.full_tensor()
    if detached.is_quantized:
        detached = detached.dequantize()
    dense = detached.to_dense() if detached.layout != torch.strided else detached
    real: Tensor = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.to("cpu", torch.float64)


@lru_cache(maxsize=256)
def _signs(count: int, generator: int) -> Tensor:
    drawn = torch.randint(0, 2, (count,), generator=own_generator(generator), dtype=torch.int8, device="cpu")
    return drawn.mul_(2).sub_(1)


@lru_cache(maxsize=256)
def _weights(count: int) -> Tensor:
    return torch.rand(count, generator=own_generator(0), dtype=torch.float64, device="cpu").add_(0.5)


def own_generator(number: int) -> torch.Generator:
    """Return a generator of `verify`, beside those of the script; those of one number draw the same."""
    return torch.Generator().manual_seed(_OWN_SEEDS[number])


def is_own(generator: torch.Generator) -> bool:
    """Return whether a generator is one of `verify`, by its seed."""
    return generator.initial_seed() in _OWN_SEEDS


def _rows(values: Tensor, dim: int) -> Rows:
    flat = values.movedim(dim, 0).flatten(1) if values.dim() > 1 else values.reshape(-1, 1)
    if not flat.numel():
        return []
    absolute = flat.abs()
    sizes = [flat.sum(1), absolute.sum(1), absolute.pow(3).sum(1).pow(1 / 3)]
    rows: Rows = torch.cat([flat @ _directions(flat.size(1)), torch.stack(sizes, 1)], 1).tolist()
    return rows


@lru_cache(maxsize=16)
def _directions(width: int) -> Tensor:
    return torch.randn(width, PROJECTIONS, generator=own_generator(0), dtype=torch.float64, device="cpu")
