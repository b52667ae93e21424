"""Refuses ``torch.save`` files that expand to more data than they store, which ``weights_only`` accepts.

A small file can otherwise expand to terabytes: by compressed records, tensors that repeat one number, or
lists that contain the same list many times.
"""

import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import IO, Any

import torch
from torch import Tensor

ZIP = b"PK\x03\x04"
"""The first bytes of a ``torch.save`` file."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""Allowed types of values in a checkpoint besides tensors, dicts, lists and tuples."""
_SPARE = 1 << 16
"""Bytes by which the records of an archive can exceed the size of the archive."""


def refuse_inflated(stream: IO[bytes], size: int) -> None:
    """Refuse an archive with compressed records, because torch writes them uncompressed.

    Args:
        stream: the archive.
        size: its bytes.

    Raises:
        ValueError: its records have more bytes than the file, or it is no archive.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            inflated = sum(record.file_size for record in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is not a complete torch.save archive ({error})") from error
    if inflated > size + _SPARE:
        raise ValueError(f"its records have {inflated:,} bytes, and the file has {size:,}")


def refuse_odd_values(tree: Any, *, most: int) -> None:
    """Refuse values that `samestep.training.checkpoint.save` never writes.

    Args:
        tree: the loaded object.
        most: maximum number of values.

    Raises:
        UnpicklingError: it contains a value of another type.
        ValueError: it has more values, or tensors with more elements than are stored.
    """
    left: list[Any] = [tree]
    count = 0
    while left:
        value = left.pop()
        count += 1
        if count > most:
            raise ValueError(f"it has more than {most:,} values, most of them repeated references")
        if isinstance(value, Tensor):
            _refuse_odd_tensor(value)
        elif type(value) in (dict, OrderedDict, Counter, list, tuple):
            left.extend(_children(value))
        elif type(value) not in PLAIN:
            raise pickle.UnpicklingError(f"it contains a {type(value).__name__}")


def _children(value: Any) -> Iterable[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


def _refuse_odd_tensor(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"it contains a {tensor.layout} tensor on {tensor.device}")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"it contains a tensor of shape {tuple(tensor.shape)} that stores fewer elements")
