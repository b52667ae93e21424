"""Compares tensors over time, without a copy of them.

A tensor whose memory cannot be read, as of a library's subclass, is unequal to itself and not zero: then no
check has a reason for a note.
"""

import zlib
from itertools import count

import torch
from torch import Tensor

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)
_unequal = count(1)


def checksum(tensor: Tensor) -> int:
    """Return a checksum of a tensor's values."""
    try:
        memory = _plain(tensor).cpu().contiguous().reshape(-1).view(torch.uint8)
        return zlib.crc32(memory.numpy().tobytes())
    except _UNREADABLE:
        return -next(_unequal)


def version(tensor: Tensor) -> tuple[int, int]:
    """Return the memory of a tensor, and how often it was changed; a value cannot change with neither."""
    try:
        plain = _plain(tensor)
        return plain.data_ptr(), plain._version  # noqa: SLF001 - there is no public spelling
    except _UNREADABLE:
        return 0, -next(_unequal)


def is_zero(tensor: Tensor | None) -> bool:
    """Return whether a tensor is missing, or zero everywhere."""
    if tensor is None:
        return True
    try:
        return not bool(_plain(tensor).count_nonzero())
    except _UNREADABLE:
        return False


def _plain(tensor: Tensor) -> Tensor:
    """Return the stored values of a sparse tensor, and this rank's part of a `DTensor`."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    # Also of a tensor whose indices repeat.
    return (local._values() if local.is_sparse else local).detach()  # noqa: SLF001
