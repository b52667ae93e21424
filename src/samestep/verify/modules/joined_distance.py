"""Compares one tensor of the run on one worker with the tensors of several ranks, which hold shards of it.

The shards are joined in one of three ways, by their shapes:

* the rows of all ranks are those of one worker: they are aligned by the samples that the ranks got, or, if
  samples cannot be distinguished, each row is compared with the nearest one;
* each rank has as many rows as one worker: each rank's tensor, their mean or their sum is that of one worker;
* otherwise they cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samestep.verify.run_record import Vector, relative, same_samples
from samestep.verify.tensor_summary import PROJECTIONS, RowSummary

Matrix = npt.NDArray[np.float64]
Order = npt.NDArray[np.intp]
_MOST_ROWS = 1024  # most rows that are compared with each other
_APART = 10.0
"""Smallest distance of two keys, as a multiple of the rounding of a key, at which they have an order."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor of one rank, with the keys of the samples it was computed from."""

    summary: RowSummary
    samples: Sequence[float]

    def rows(self, dim: int) -> Matrix:
        """Return the numbers of its rows."""
        rows = self.summary.rows[dim]
        return np.array(rows, dtype=np.float64).reshape(len(rows), -1)

    def other_sizes(self, dim: int) -> list[int]:
        """Return the sizes of all other dimensions."""
        return [size for k, size in enumerate(self.summary.shape) if k != dim]


def forward_distance(one: Shard, shards: Sequence[Shard]) -> float | None:
    """Return how far the shards of a tensor are from that of one worker; None if that is not known."""
    if (dim := _sharded(one, shards)) is not None:
        return _of_rows(one, shards, dim, np.ones(len(shards)))
    if not _have_shape(one, shards):
        return None
    return _of_equals(one, shards, [_shares(shards)])


def gradient_distance(one: Shard, shards: Sequence[Shard], scales: Sequence[Vector]) -> float | None:
    """Return how far the gradients of shards are from that of one worker; None if that is not known.

    Args:
        one: the gradient on one worker.
        shards: the gradients of the ranks.
        scales: possible factors by which each rank's gradients are larger than on one worker.
    """
    if (dim := _sharded(one, shards)) is not None:
        found = [_of_rows(one, shards, dim, scale) for scale in scales]
        return min((distance for distance in found if distance is not None), default=None)
    if not _have_shape(one, shards):
        return None
    return _of_equals(one, shards, [1 / scale for scale in scales])


def scales_of(one: Shard, shards: Sequence[Shard]) -> Vector | None:
    """Return the factor by which each rank's gradients are larger than on one worker; None if not known.

    The mean over a shard of one N-th of the batch gives each sample N times the weight, which averaging over
    the ranks takes back. A sum does not; and shards of unequal sizes have one factor, or one each.
    """
    if (dim := _sharded(one, shards)) is None:
        return None
    count = len(shards)
    candidates = [np.ones(count), np.full(count, float(count)), *_fitted(one, shards, dim)]
    distances = [_of_rows(one, shards, dim, scale) for scale in candidates]
    known = [(found, number) for number, found in enumerate(distances) if found is not None]
    return candidates[min(known)[1]] if known else None


def _fitted(one: Shard, shards: Sequence[Shard], dim: int) -> list[Vector]:
    """Return the factors that fit best: one for all ranks, or one over the rank's number of samples."""
    order = _order(one, shards, dim)
    if order is None:
        return []
    fits = []
    for weights in (np.ones(len(shards)), 1 / _shares(shards)):
        usual, here = _in_order(one.rows(dim), _joined(shards, dim, weights), order)
        size = float((usual**2).sum())
        if size and (factor := float((here * usual).sum()) / size) > 0:
            fits.append(weights * factor)
    return fits


def _sharded(one: Shard, shards: Sequence[Shard]) -> int | None:
    """Return the dimension along which the shards have the rows of one worker between them."""
    for dim, rows in one.summary.rows.items():
        if (
            len(one.summary.shape) > dim
            and all(dim in shard.summary.rows for shard in shards)
            and all(shard.other_sizes(dim) == one.other_sizes(dim) for shard in shards)
            and sum(len(shard.summary.rows[dim]) for shard in shards) == len(rows)
        ):
            return dim
    return None


def _have_shape(one: Shard, shards: Sequence[Shard]) -> bool:
    return all(list(shard.summary.shape) == list(one.summary.shape) for shard in shards)


def _joined(shards: Sequence[Shard], dim: int, scale: Vector) -> Matrix:
    """Return the rows of all ranks, each rank's divided by its scale."""
    return np.concatenate([shard.rows(dim) / by for shard, by in zip(shards, scale, strict=True)])


def _of_rows(one: Shard, shards: Sequence[Shard], dim: int, scale: Vector) -> float | None:
    """Return the distance of the rows, each rank's divided by its scale."""
    usual, here = one.rows(dim), _joined(shards, dim, scale)
    order = _order(one, shards, dim)
    if order is None:
        return _of_nearest(usual, here)
    distance = _of_aligned(*_in_order(usual, here, order), slice(PROJECTIONS))
    if one.summary.shape[1:] != [len(one.samples)]:
        return distance
    # The columns are samples too, which several ranks gather in another order.
    return min(distance, _of_aligned(*_in_order(usual, here, order), slice(PROJECTIONS, None)))


def _of_aligned(usual: Matrix, here: Matrix, numbers: slice) -> float:
    return relative(here[..., numbers].ravel(), usual[..., numbers].ravel())


def _order(one: Shard, shards: Sequence[Shard], dim: int) -> tuple[Order, Order] | None:
    """Return the order of the samples on one worker and over all ranks; None if they are not distinct."""
    count = len(one.samples)
    if not count or any(not shard.samples for shard in shards):
        return None
    per_sample, rest = divmod(len(one.summary.rows[dim]), count)
    if rest or any(len(shard.summary.rows[dim]) != per_sample * len(shard.samples) for shard in shards):
        return None
    usual = np.array(one.samples)
    here = np.array([key for shard in shards for key in shard.samples])
    orders = np.argsort(usual, kind="stable"), np.argsort(here, kind="stable")
    usual, here = usual[orders[0]], here[orders[1]]
    if not same_samples(here, usual):
        return None
    rounding = max(float(np.abs(usual - here).max()), np.finfo(np.float64).eps * float(np.abs(usual).max()))
    return orders if count == 1 or float(np.diff(usual).min()) > _APART * rounding else None


def _in_order(usual: Matrix, here: Matrix, order: tuple[Order, Order]) -> tuple[Matrix, Matrix]:
    """Return the rows of each sample, in the order of the samples."""
    first, second = (
        rows.reshape(len(by), -1, rows.shape[1])[by] for rows, by in zip((usual, here), order, strict=True)
    )
    return first, second


def _of_nearest(usual: Matrix, here: Matrix) -> float | None:
    """Return the distance of each row to the nearest of the others; None for too many rows."""
    if max(len(usual), len(here)) > _MOST_ROWS:
        return None
    usual, here = usual[:, :PROJECTIONS], here[:, :PROJECTIONS]
    squares = ((usual[:, None] - here[None]) ** 2).sum(-1)
    size = float((usual**2).sum())
    farthest = max(float(squares.min(0).sum()), float(squares.min(1).sum()))
    return float(np.sqrt(farthest / size)) if size else (0.0 if not farthest else float("inf"))


def _of_equals(one: Shard, shards: Sequence[Shard], weights: Sequence[Vector]) -> float:
    """Return the least distance of each rank's tensor, of their mean, their sum and of weighted sums."""
    usual = one.rows(0)[:, :PROJECTIONS]
    all_rows = np.stack([shard.rows(0)[:, :PROJECTIONS] for shard in shards])
    each = max(relative(rows.ravel(), usual.ravel()) for rows in all_rows)
    gathered = [each] if len(usual) == 1 else [_of_nearest(usual, rows) for rows in all_rows]
    nearest = max(float("inf") if far is None else far for far in gathered)
    count = len(shards)
    sums = [
        relative(np.tensordot(by, all_rows, 1).ravel(), usual.ravel())
        for by in (np.ones(count), np.full(count, 1 / count), *weights)
    ]
    return min(each, nearest, *sums)


def _shares(shards: Sequence[Shard]) -> Vector:
    """Return each rank's share of the samples; equal shares if they are not known."""
    counts = np.array([float(len(shard.samples)) for shard in shards])
    return counts / counts.sum() if counts.all() else np.full(len(shards), 1 / len(shards))
