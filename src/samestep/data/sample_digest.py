"""A digest of one sample, to tell whether two processes read the same."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def sample_digest(sample: Any) -> str:
    """Return a digest of the tensors, arrays, numbers and texts in `sample`; equal samples have equal ones.

    Of an object of another class only the class counts: where it lies in memory is no difference.
    """
    digest = hashlib.sha256()
    _add(digest, sample)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", value: Any) -> None:
    digest.update(f"{type(value).__qualname__} ".encode())
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested:
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        value = value.detach().cpu().resolve_conj().resolve_neg().flatten()
        value = value.clone(memory_format=torch.contiguous_format)  # a strided view has no bytes of its own
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
