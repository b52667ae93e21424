"""Handles what cuDNN keeps for itself: random states of recurrent layers, and chosen algorithms."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def draws_in_cudnn(module: nn.Module) -> bool:
    """Return whether a call of a module draws dropout in a kernel of cuDNN, without torch's generators."""
    has_layers = isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout > 0
    return has_layers and module.training and torch.backends.cudnn.enabled


@contextmanager
def untuned_kernels(device: torch.device) -> Iterator[None]:
    """Let cuDNN try no algorithms for the shapes of a block, which a script computes only once."""
    is_tuned = device.type == "cuda" and torch.backends.cudnn.benchmark
    if is_tuned:
        torch._C._set_cudnn_benchmark(False)  # noqa: FBT003, SLF001 - `flags` would set all others, too
    try:
        yield
    finally:
        if is_tuned:
            torch._C._set_cudnn_benchmark(True)  # noqa: FBT003, SLF001
