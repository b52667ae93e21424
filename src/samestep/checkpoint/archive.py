"""Checks files of ``torch.save`` beyond what ``weights_only`` does: they hold no more than their bytes can.

A small file could otherwise stand for terabytes: compressed records, tensors that repeat one number, lists
that hold the same list many times over.
"""

import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import IO, Any

import torch
from torch import Tensor

ZIP = b"PK\x03\x04"
"""What a file of ``torch.save`` begins with."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""Kinds of values beside tensors, dicts, lists and tuples that a checkpoint may hold."""
_SPARE = 1 << 16
"""Bytes by which the records of an archive may be larger than the archive itself."""


def refuse_inflated(stream: IO[bytes], size: int) -> None:
    """Refuse an archive whose records take more bytes than it has: torch writes them uncompressed.

    Args:
        stream: the archive.
        size: its bytes.

    Raises:
        ValueError: they do, or it is no archive.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            inflated = sum(record.file_size for record in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is no whole archive of torch.save ({error})") from error
    if inflated > size + _SPARE:
        raise ValueError(f"its records take {inflated:,} bytes, and it has {size:,}")


def refuse_odd_values(tree: Any, *, most: int) -> None:
    """Refuse what `samestep.checkpoint.save` never writes.

    Args:
        tree: what was read.
        most: values that there may be.

    Raises:
        UnpicklingError: there are other kinds of values.
        ValueError: there are more values, or tensors with more numbers than are stored.
    """
    left: list[Any] = [tree]
    count = 0
    while left:
        value = left.pop()
        count += 1
        if count > most:
            raise ValueError(f"it has more than {most:,} values, most of which are the same ones again")
        if isinstance(value, Tensor):
            _refuse_odd_tensor(value)
        elif type(value) in (dict, OrderedDict, Counter, list, tuple):
            left.extend(_children(value))
        elif type(value) not in PLAIN:
            raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")


def _children(value: Any) -> Iterable[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


def _refuse_odd_tensor(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"it holds a {tensor.layout} tensor on {tensor.device}")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"it holds a tensor of shape {tuple(tensor.shape)} with fewer numbers than that")
