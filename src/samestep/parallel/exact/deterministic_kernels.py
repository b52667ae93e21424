"""Selects GPU algorithms that give the same bits each time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Make a GPU's libraries use deterministic algorithms inside a block; CPU algorithms always are."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
