"""Algorithms that give the same bits each time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Have a GPU's libraries choose algorithms that give the same bits each time; processors do anyway."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
