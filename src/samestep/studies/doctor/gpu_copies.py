"""Copies data between the CUDA devices that this process sees, and compares it value by value."""

import time

import torch

from samestep.studies.doctor.gpus import Copy, copied

_VALUES = 4 * 2**20  # 32 MiB as int64
_TIMES = 4


def copies_here() -> list[Copy]:
    """Copy between each pair of devices in both directions; opens a context on each."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return []
    return copied(torch.cuda.device_count(), _on_devices, torch.cuda.can_device_access_peer)


def compared(source: torch.device, target: torch.device, values: int) -> tuple[int, int, float]:
    """Copy distinct numbers; return the number of wrong values, the number of values, and bytes/s."""
    sent = torch.arange(1, values + 1, dtype=torch.int64, device=source)
    arrived = torch.zeros_like(sent, device=target)  # a value that no copy reaches counts as wrong
    arrived.copy_(sent)
    _wait(source, target)
    expected = torch.arange(1, values + 1, dtype=torch.int64, device=target)
    wrong = int((arrived != expected).sum().item())
    _wait(source, target)
    begin = time.perf_counter()
    for _ in range(_TIMES):
        arrived.copy_(sent)
    _wait(source, target)
    took = time.perf_counter() - begin
    return wrong, values, _TIMES * sent.numel() * sent.element_size() / took


def _on_devices(source: int, target: int) -> tuple[int, int, float]:
    return compared(torch.device("cuda", source), torch.device("cuda", target), _VALUES)


def _wait(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
