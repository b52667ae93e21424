"""Batches whose tensors have a row for each sample: what is the same in all, and putting them together.

Each rank has some of the rows. They travel in one message, as bytes, in the form that the first batch had::

    byte 0   | 16              | ...             |
    status   | rows of images  | rows of labels  |      room for the largest share, each part aligned

The form is learnt once: a rank whose rows have another one says so in its status, and sends nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.sharding.share import share
from samestep.watch.tree import Path, leaves, mapped
from samestep.world.world import World

_ALIGNED = 16
GOOD, FAILED, UNLIKE = 1, 2, 3
"""What a rank says of its share: here it is; loading it failed; it cannot be one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sample's part of one tensor of a batch."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def rows_of(batch: Any, total: int) -> tuple[Row, ...] | None:
    """Return what a batch of `total` samples is made of; None where it is more than rows of samples."""
    if not _holds_tensors_alone(batch):
        return None
    found = list(leaves(batch))
    if not found or not all(_has_rows(tensor, total) for _, tensor in found):
        return None
    return tuple(Row(path, tensor.dtype, tuple(tensor.shape[1:])) for path, tensor in found)


def same_rows(batch: Any, own: range, part: Any) -> bool:
    """Return whether a part is, bit for bit, the rows `own` of a batch."""
    whole, some = dict(leaves(batch)), dict(leaves(part))
    return whole.keys() == some.keys() and all(
        torch.equal(_bytes(tensor[own.start : own.stop]), _bytes(some[path]))
        for path, tensor in whole.items()
    )


def exchange(world: World, rows: Sequence[Row], total: int, part: Any, status: int) -> list[Tensor]:
    """Return what all ranks sent; see `statuses` and `put_together`.

    Args:
        world: the ranks.
        rows: the form of the batches.
        total: samples of this one.
        part: this rank's rows; nothing where `status` is not `GOOD`.
        status: what this rank says of them.
    """
    most = len(share(total, 0, world.place.size))
    offsets = list(_offsets(rows, most))
    message = torch.zeros(offsets[-1], dtype=torch.uint8, device="cpu")
    message[0] = status
    if status == GOOD:
        for start, (_, tensor) in zip(offsets, leaves(part), strict=False):
            sent = _bytes(tensor)
            message[start : start + sent.numel()] = sent
    return [one.cpu() for one in world.all_gather(message.to(world.device))]


def statuses(messages: Sequence[Tensor]) -> list[int]:
    """Return what each rank says of its share."""
    return [int(message[0]) for message in messages]


def put_together(messages: Sequence[Tensor], rows: Sequence[Row], total: int, part: Any) -> Any:
    """Return a whole batch, built as `part` is."""
    size = len(messages)
    counts = [len(share(total, rank, size)) for rank in range(size)]
    whole: dict[Path, Tensor] = {}
    for row, start in zip(rows, _offsets(rows, counts[0]), strict=False):
        pieces = [
            message[start : start + count * row.num_bytes].view(row.dtype).view(count, *row.shape)
            for message, count in zip(messages, counts, strict=True)
        ]
        whole[row.path] = torch.cat(pieces)
    return mapped(part, lambda path, _: whole[path])


def _offsets(rows: Sequence[Row], most: int) -> Iterator[int]:
    """Yield where each tensor's rows begin in a message, and last where it ends."""
    at = _ALIGNED
    for row in rows:
        yield at
        at += -(-row.num_bytes * most // _ALIGNED) * _ALIGNED
    yield at


def _holds_tensors_alone(batch: Any) -> bool:
    if isinstance(batch, Tensor):
        return True
    if isinstance(batch, dict):
        return all(map(_holds_tensors_alone, batch.values()))
    return isinstance(batch, list | tuple) and all(map(_holds_tensors_alone, batch))


def _has_rows(tensor: Tensor, total: int) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and tensor.dim() > 0
        and tensor.size(0) == total
        and tensor.is_contiguous()
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
