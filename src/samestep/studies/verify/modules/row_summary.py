"""Summarizes a tensor row by row, so that the shards of several ranks can be joined to one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from samestep.studies.verify.tensor_summary import in_double, separate_generator

PROJECTIONS = 4
"""Numbers per row that are linear in the row: products with random vectors."""
SIZES = 3
"""Further numbers per row, which the order of the row's elements does not change."""
Rows = list[list[float]]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The summary of one tensor on one rank."""

    shape: Sequence[int]  # its shape
    # the numbers of each row, by the dimension along which the rows are counted
    rows: dict[int, Rows] = field(default_factory=dict)


def summarize(tensor: Tensor, samples: int) -> RowSummary:
    """Return the summary of a tensor that is computed from a number of samples.

    Rows are counted along the first dimension, and also along the second one if that has one row per sample.
    A value that is not finite counts as zero, so that a mask of infinities does not hide all others.
    """
    values = torch.nan_to_num(in_double(tensor), nan=0.0, posinf=0.0, neginf=0.0)
    dims = [0, 1] if tensor.dim() > 1 and tensor.size(1) == samples else [0]
    return RowSummary(list(tensor.shape), {dim: _rows(values, dim) for dim in dims})


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
    return torch.randn(width, PROJECTIONS, generator=separate_generator(), dtype=torch.float64, device="cpu")
