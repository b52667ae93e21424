"""From settings to the objects that train: weights, optimizer, schedule."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from samestep.training.settings import Settings

_generator = threading.Lock()  # ranks that are threads share the one generator of the process


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from torch's CPU generator as if it had just been seeded; the caller's state is put back."""
    with _generator:
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


def build_model(make: Callable[[], nn.Module], settings: Settings, device: torch.device) -> nn.Module:
    """Return the model with the initial weights that the seed means, on any device and at any world size."""
    with seeded(settings.seed):  # drawn on the CPU: devices draw other numbers
        return make().to(device=device, dtype=settings.torch_dtype)


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Return the optimizer over all parameters of `model`."""
    if settings.optimizer == "adamw":
        return AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    return SGD(
        model.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


def build_schedule(optimizer: Optimizer, settings: Settings, *, steps: int) -> LRScheduler | None:
    """Return the schedule over `steps` global batches, or None for a constant rate."""
    if settings.schedule == "cosine":
        return CosineAnnealingLR(optimizer, T_max=steps)
    if settings.schedule == "one-cycle":
        return OneCycleLR(optimizer, max_lr=settings.lr, total_steps=steps)
    return None
