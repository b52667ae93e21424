"""Reading a checkpoint: what was written, bit for bit, or an error that says what is wrong with it."""

import hashlib
import io
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.checkpoint.files import Seal
from samestep.checkpoint.manifest import AVERAGE, MODEL, OPTIMIZER, STATE, read_manifest
from samestep.checkpoint.snapshot import Snapshot

_EARLIER = "Use an earlier checkpoint."


def read(folder: Path) -> Snapshot:
    """Return what checkpoint `folder` holds, every byte of it verified; no code of it is run.

    Raises:
        CheckpointError: it is no whole, unchanged checkpoint of a known format; names the file.
    """
    seals = read_manifest(folder)
    return Snapshot(
        model=_tensors(folder / MODEL, seals[MODEL]),
        optimizer=_plain_pickle(folder / OPTIMIZER, seals[OPTIMIZER]),
        state=_json(folder / STATE, seals[STATE]),
        average=_tensors(folder / AVERAGE, seals[AVERAGE]) if AVERAGE in seals else None,
    )


def read_state(folder: Path) -> Mapping[str, Any]:
    """Return ``state.json`` alone, verified; the large files are not looked at.

    Raises:
        CheckpointError: see `read`.
    """
    return _json(folder / STATE, read_manifest(folder)[STATE])


def _tensors(path: Path, seal: Seal) -> dict[str, Tensor]:
    data = _verified(path, seal)
    with _told(path):
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors


def _plain_pickle(path: Path, seal: Seal) -> dict[str, Any]:
    data = _verified(path, seal)
    with _told(path):
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not a dict. {_EARLIER}")
    return value


def _json(path: Path, seal: Seal) -> dict[str, Any]:
    data = _verified(path, seal)
    with _told(path):
        value = json.loads(data)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object. {_EARLIER}")
    return value


def _verified(path: Path, seal: Seal) -> bytes:
    """Return the bytes of a file, which are those that were written: what is parsed is what was hashed."""
    try:
        found = path.stat().st_size
        if found != seal.bytes:
            raise CheckpointError(
                f"{path} was damaged after it was saved: {found:,} bytes, saved as {seal.bytes:,}. {_EARLIER}"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the checkpoint is not whole. {_EARLIER}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}. {_EARLIER}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != seal.sha256:
        raise CheckpointError(
            f"{path} was damaged after it was saved: sha256 {digest[:12]}..., saved as {seal.sha256[:12]}... "
            f"{_EARLIER}"
        )
    return data


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises over foreign bytes into one clear error."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is refused: it holds more than tensors and plain values, and unpickling that could run "
            f"any code. {_EARLIER}"
        ) from error
    except Exception as error:  # a parser may raise anything
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise CheckpointError(
            f"{path} cannot be read: {type(error).__name__}: {reason}. {_EARLIER}"
        ) from error
