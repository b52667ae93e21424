"""Finds the rows that a slice's packed sequences have among those of the whole batch.

A packed sequence holds the first elements of all sequences, the longest sequence first, then their second
elements, and so on. Of three sequences a, b and c with 1, 3 and 2 elements, of which a slice has a and b::

    whole    b1 c1 a1 b2 c2 b3
    slice    b1    a1 b2    b3        rows 0, 2, 3 and 5
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from samestep.autopilot.split.sharded_autograd import BatchSplit


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a slice's packed sequences."""

    rows: Tensor
    """Their places among the rows of the whole batch, on the CPU."""
    total: int
    """The number of rows of the whole batch."""


def packed_rows(batch_sizes: Tensor, order: Tensor | None, split: BatchSplit) -> PackedRows:
    """Return the rows of this rank's sequences; all ranks call this.

    Args:
        batch_sizes: the number of this rank's sequences that have an element, for each place of one.
        order: the order in which this rank's sequences are packed, on the CPU; None if that is their own.
        split: the batch, and this rank's samples.
    """
    places = torch.arange(split.local, device="cpu")
    own_lengths = (batch_sizes > places[:, None]).sum(1)
    own = places if order is None else order
    whole = torch.zeros(split.total, dtype=torch.float64, device="cpu")
    whole[split.start + own] = own_lengths.double()
    split.world.all_reduce(whole)
    whole = whole.long()
    # By the operation by which torch orders the sequences of the whole batch.
    whole_order = (
        torch.arange(split.total, device="cpu") if order is None else torch.sort(whole, descending=True)[1]
    )
    own_places = whole_order.argsort()[split.start + own]
    steps = torch.arange(int(whole.max()), device="cpu")[:, None]
    sizes = (whole > steps).sum(1)
    begins = sizes.cumsum(0) - sizes
    return PackedRows((begins[:, None] + own_places)[own_lengths > steps], int(whole.sum()))
