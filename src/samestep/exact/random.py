"""Random numbers of one logical shard, whoever computes it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_generators = threading.Lock()  # ranks that are threads share the generators of the process


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Draw on the CPU and on `device` as if just seeded; the states of before are put back."""
    devices = [] if device.type == "cpu" else [device]
    with _generators, torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield
