"""Computes one checksum over all weights of a model."""

import hashlib
from collections.abc import Mapping

from torch import Tensor

from samestep.checkpoint.tensors import bytes_of


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of a state dict, in the order of the names.

    Two models have equal digests if and only if their weights are bit-equal.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor.detach().cpu()))
    return digest.hexdigest()
