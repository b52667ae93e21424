"""Computes one checksum over all weights of a model."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of a state dict, in the order of the names.

    Two models have equal digests if and only if their weights are bit-equal.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor.detach().cpu()))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a CPU tensor in row-major order, without a copy if it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
