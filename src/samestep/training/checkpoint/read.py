"""Reads a checkpoint, verifies every byte of it, and executes no code of it.

``torch.save`` files that expand to more data than they store are refused, which ``weights_only`` accepts. A
small file can otherwise expand to terabytes: by compressed records, tensors that repeat one number, or lists
that contain the same list many times.
"""

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.base.regular_files import open_regular
from samestep.training.checkpoint.snapshot import (
    AVERAGE,
    MODEL,
    MOST_STATE,
    OPTIMIZER,
    STATE,
    Seal,
    Snapshot,
    read_manifest,
)

ZIP = b"PK\x03\x04"
"""The first bytes of a ``torch.save`` file."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""Allowed types of values in a checkpoint besides tensors, dicts, lists and tuples."""
_SPARE = 1 << 16  # bytes by which the records of an archive can exceed the size of the archive


def refuse_inflated(stream: IO[bytes], size: int) -> None:
    """Refuse an archive with compressed records, because torch writes them uncompressed.

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
            left.extend([*value.keys(), *value.values()] if isinstance(value, dict) else value)
        elif type(value) not in PLAIN:
            raise pickle.UnpicklingError(f"it contains a {type(value).__name__}")


def _refuse_odd_tensor(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"it contains a {tensor.layout} tensor on {tensor.device}")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"it contains a tensor of shape {tuple(tensor.shape)} that stores fewer elements")


_EARLIER = "Use an earlier checkpoint."
_LARGE = 1 << 28  # size in bytes from which the start of a file is checked before the rest is read
_DIGITS = 40  # maximum digits of an integer in ``state.json``


def read(folder: Path) -> Snapshot:
    """Return the contents of checkpoint `folder`, with every byte verified; executes no code of it.

    Raises:
        CheckpointError: it is incomplete, damaged or of an unknown format; names the file.
    """
    seals = read_manifest(folder)
    return Snapshot(
        model=_tensors(folder / MODEL, seals[MODEL]),
        optimizer=_plain_pickle(folder / OPTIMIZER, seals[OPTIMIZER]),
        state=_json(folder / STATE, seals[STATE]),
        average=_tensors(folder / AVERAGE, seals[AVERAGE]) if AVERAGE in seals else None,
    )


def read_state(folder: Path) -> Mapping[str, Any]:
    """Return ``state.json`` alone, verified, without reading the large files.

    Raises:
        CheckpointError: see `read`.
    """
    return _json(folder / STATE, read_manifest(folder)[STATE])


def _tensors(path: Path, seal: Seal) -> dict[str, Tensor]:
    data = _verified(path, seal)
    with _refused(path):
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors


def _plain_pickle(path: Path, seal: Seal) -> dict[str, Any]:
    data = _verified(path, seal)
    if not data.startswith(ZIP):
        raise CheckpointError(f"{path} is refused: it is not a torch.save file. {_EARLIER}")
    with _refused(path):
        refuse_inflated(io.BytesIO(data), len(data))
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        refuse_odd_values(value, most=max(len(data), 1000))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains a {type(value).__name__}, not a dict. {_EARLIER}")
    return value


def _json(path: Path, seal: Seal) -> dict[str, Any]:
    if seal.bytes > MOST_STATE:
        raise CheckpointError(f"{path} has {seal.bytes:,} bytes, more than the maximum {MOST_STATE:,}.")
    data = _verified(path, seal)
    with _refused(path):
        value = parse_state(data)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains a {type(value).__name__}, not an object. {_EARLIER}")
    return value


def parse_state(text: str | bytes) -> Any:
    """Return the value of a JSON text, such as ``state.json``.

    Raises:
        ValueError: it is no JSON, a key occurs twice, or an integer has too many digits.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_int=_short_int)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.40} occurs twice")
    return value


def _short_int(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _verified(path: Path, seal: Seal) -> bytes:
    """Return the bytes of a file after a check of their size and sha256."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != seal.bytes:
                raise CheckpointError(
                    f"{path} is damaged: it has {size:,} bytes, and {seal.bytes:,} were saved. {_EARLIER}"
                )
            if size > _LARGE:  # smaller ones are faster read completely
                _refuse_no_weights(path, stream, size)
            data = stream.read(size)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete. {_EARLIER}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}. {_EARLIER}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != seal.sha256:
        raise CheckpointError(
            f"{path} is damaged: its sha256 is {digest[:12]}..., and {seal.sha256[:12]}... was saved. "
            f"{_EARLIER}"
        )
    return data


def _refuse_no_weights(path: Path, stream: BufferedReader, size: int) -> None:
    """Refuse a large file before all of it is read, if its first bytes are those of no checkpoint file."""
    start = stream.read(9)
    stream.seek(0)
    header = int.from_bytes(start[:8], "little")
    if not start.startswith(ZIP) and not (0 < header < size and start[8:] == b"{"):
        raise CheckpointError(f"{path} is damaged: it begins with {start!r}. {_EARLIER}")


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Convert any exception of a parser to a `CheckpointError`."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is refused: it contains more than tensors and plain values, and unpickling that can "
            f"execute any code. {_EARLIER}"
        ) from error
    except Exception as error:  # a parser can raise anything
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise CheckpointError(
            f"{path} cannot be read: {type(error).__name__}: {reason}. {_EARLIER}"
        ) from error
