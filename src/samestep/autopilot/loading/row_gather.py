"""Gathers batches whose tensors have one row per sample.

Each rank has some of the rows, and sends them as bytes in one message, in the form of the first batch::

    byte 0   | 16              | ...             |
    status   | rows of images  | rows of labels  |      space for the largest share, each part aligned

The form is determined once. A rank whose rows have another form sends only the status `MISMATCH`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.hooks.tensor_tree import Path, leaves, mapped
from samestep.parallel.sharding.share import share
from samestep.ranks.world.protocol import World

_ALIGNED = 16
GOOD, FAILED, MISMATCH = 1, 2, 3
"""The status of a rank's share: it is loaded; loading has failed; its form differs."""


@dataclass(frozen=True, slots=True)
class Row:
    """The form of one sample in one tensor of a batch."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The size of a row in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def rows_of(batch: Any, total: int) -> tuple[Row, ...] | None:
    """Return the form of a batch of `total` samples; None if it does not consist of rows of samples."""
    if not _holds_only_tensors(batch):
        return None
    found = list(leaves(batch))
    if not found or not all(_has_rows(tensor, total) for _, tensor in found):
        return None
    return tuple(Row(path, tensor.dtype, tuple(tensor.shape[1:])) for path, tensor in found)


def same_rows(batch: Any, own: range, part: Any) -> bool:
    """Return whether a part equals, bit for bit, the rows `own` of a batch."""
    whole, some = dict(leaves(batch)), dict(leaves(part))
    return whole.keys() == some.keys() and all(
        torch.equal(_bytes(tensor[own.start : own.stop]), _bytes(some[path]))
        for path, tensor in whole.items()
    )


def own_rows(batch: Any, own: range) -> Any:
    """Return the rows `own` of a batch."""
    return mapped(batch, lambda _, tensor: tensor[own.start : own.stop])


def gather_rows(world: World, rows: Sequence[Row], total: int, part: Any, status: int) -> list[Tensor]:
    """Return the messages of all ranks, for `batch_of_rows`; the first byte is the rank's status.

    The rows in `part` are ignored if the status of this rank is not `GOOD`. `total` is the size of the batch.
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


def batch_of_rows(messages: Sequence[Tensor], rows: Sequence[Row], total: int, part: Any) -> Any:
    """Return the whole batch, with the structure of `part`."""
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
    """Yield the offset of each tensor's rows in a message, and the end of the message."""
    at = _ALIGNED
    for row in rows:
        yield at
        at += -(-row.num_bytes * most // _ALIGNED) * _ALIGNED
    yield at


def _holds_only_tensors(batch: Any) -> bool:
    if isinstance(batch, Tensor):
        return True
    if isinstance(batch, dict):
        return all(map(_holds_only_tensors, batch.values()))
    return isinstance(batch, list | tuple) and all(map(_holds_only_tensors, batch))


def _has_rows(tensor: Tensor, total: int) -> bool:
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return not tensor.requires_grad and tensor.shape[:1] == (total,) and tensor.is_contiguous()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
