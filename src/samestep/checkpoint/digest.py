"""One fingerprint for all the weights of a model."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of `tensor` in row-major order, whatever its dtype and device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of a state dict, in the order of the names.

    Two models have equal digests if and only if they would be saved as the same weights, bit for bit.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()
