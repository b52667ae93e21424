"""Computes a checksum of one sample, by which processes compare their data."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def sample_digest(sample: Any) -> str:
    """Return a checksum of the tensors, arrays, numbers and strings in `sample`.

    An object of any other class contributes only the name of its class.
    """
    digest = hashlib.sha256()
    _add(digest, sample)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", value: Any) -> None:
    digest.update(f"{type(value).__qualname__} ".encode())
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested:
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        value = value.detach().cpu().resolve_conj().resolve_neg().flatten()
        value = value.clone(memory_format=torch.contiguous_format)  # a strided view is not contiguous
        digest.update(value.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, str | int | float | complex | np.generic):
        digest.update(repr(value).encode())
    elif isinstance(value, list | tuple | Mapping):
        for part in value.items() if isinstance(value, Mapping) else value:
            _add(digest, part)
    digest.update(b";")
