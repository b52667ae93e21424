"""Summarizes tensors by a few numbers, from which the distance of two tensors can be estimated.

A sketch adds the elements of a tensor, with random signs, into a few buckets. It is linear, so the sketch of
a difference is the difference of sketches, and its expected squared norm is that of the tensor (Charikar,
Chen and Farach-Colton, "Finding frequent items in data streams", 2002). A sample's key is the sum of its
elements with random weights: equal samples have equal keys, and different samples almost surely do not.
"""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from samestep.studies.verify.tensor_parallel import whole_tensor

BUCKETS = 16
"""Numbers per tensor; they give the norm of a difference to about a third, better for many tensors."""
_SEED = 20_021


def sketch(tensors: Iterable[Tensor | None]) -> list[float]:
    """Return `BUCKETS` numbers for each tensor, in order; zeros for None."""
    parts = [_one(tensor) for tensor in tensors]
    return torch.cat(parts).tolist() if parts else []


def norm(tensors: Iterable[Tensor | None]) -> float:
    """Return the 2-norm of all elements of all tensors."""
    squares = [in_double(tensor).pow(2).sum() for tensor in tensors if tensor is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def row_keys(tensor: Tensor) -> list[float]:
    """Return a key for each sample: for each index of the first dimension; none without values."""
    if tensor.is_meta:
        return []
    rows = in_double(tensor).reshape(tensor.size(0), -1)
    return torch.mv(rows, _weights(rows.size(1))).tolist()


def _one(tensor: Tensor | None) -> Tensor:
    if tensor is None or not tensor.numel():
        return torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")
    values = in_double(tensor).reshape(-1)
    signed = values * _signs(values.numel())
    padded = torch.nn.functional.pad(signed, (0, -len(signed) % BUCKETS))
    return padded.reshape(-1, BUCKETS).sum(0)


def in_double(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, dense and real, in double precision on the CPU."""
    detached = whole_tensor(tensor.detach())
    dense = detached.to_dense() if detached.layout != torch.strided else detached
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.to("cpu", torch.float64)


@lru_cache(maxsize=256)
def _signs(count: int) -> Tensor:
    drawn = torch.randint(0, 2, (count,), generator=separate_generator(), dtype=torch.int8, device="cpu")
    return drawn.mul_(2).sub_(1)


@lru_cache(maxsize=256)
def _weights(count: int) -> Tensor:
    return torch.rand(count, generator=separate_generator(), dtype=torch.float64, device="cpu").add_(0.5)


def separate_generator() -> torch.Generator:
    """Return a separate generator so that the state of the script's generator does not change."""
    return torch.Generator().manual_seed(_SEED)
