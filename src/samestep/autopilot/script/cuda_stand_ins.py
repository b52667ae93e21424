"""Replacements for functions and classes of `torch.cuda` in a script that runs on the CPU."""

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psutil
import torch


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class Event:
    """A CUDA event: a point in time, at which all earlier work is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        """Store the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, later: "Event") -> float:
        """Return the milliseconds to another event."""
        return (later._at - self._at) * 1000  # noqa: SLF001 - of the same class

    def query(self) -> bool:
        """Return True: its work is done."""
        return True

    synchronize = wait = _nothing


class Stream(nullcontext[None]):
    """A CUDA stream, in which all work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event with the current time."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    synchronize = wait_event = wait_stream = _nothing


def _properties(*_: Any, **__: Any) -> SimpleNamespace:
    total = psutil.virtual_memory().total
    return SimpleNamespace(name="cpu", major=0, minor=0, total_memory=total, multi_processor_count=1)


def _free_and_total(*_: Any, **__: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _set_rng_states(states: Iterable[torch.Tensor]) -> None:
    for state in states:
        torch.set_rng_state(state)


STAND_INS: Mapping[str, Any] = {
    "Event": Event,
    "Stream": Stream,
    "stream": lambda stream: stream if isinstance(stream, Stream) else nullcontext(),
    "current_stream": Stream,
    "default_stream": Stream,
    "device": nullcontext,
    "current_device": lambda: 0,
    "set_device": _nothing,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    "reset_peak_memory_stats": _nothing,
    "reset_max_memory_allocated": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "mem_get_info": _free_and_total,
    "memory_summary": lambda *_, **__: "",
    "get_device_name": lambda *_, **__: "cpu",
    "get_device_capability": lambda *_, **__: (0, 0),
    "get_device_properties": _properties,
    "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    "set_rng_state_all": _set_rng_states,
    "manual_seed": _nothing,
    "manual_seed_all": _nothing,
}
"""Replacements by their names in `torch.cuda`."""
DEVICE_ANSWERS: tuple[Any, ...] = (True, 1, True, 1, torch.device("cpu"))
"""The return values of the functions in `declarations.DEVICE_ANSWERS`, which report one GPU to a script."""
