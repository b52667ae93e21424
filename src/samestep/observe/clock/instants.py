"""Defines instants: times on the host, and events in the stream of an accelerator."""

import time
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch


def is_captured(device: torch.device) -> bool:
    """Return whether this thread captures a CUDA graph: work on the device is then recorded, not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class HostInstants:
    """Instants of the host, where work ends with its code.

    `now` returns the current instant in monotonic seconds.
    """

    of_device: ClassVar[bool] = False
    """Whether queries are limited to the thread that uses the device, outside a graph capture."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._origin_s: float | None = None  # unix time at which `now` is 0

    def between(self, before: float, after: float) -> float:
        """Return the seconds between two instants that have passed."""
        return after - before

    def epoch_s(self, instant: float) -> float:
        """Return the Unix time, in seconds, of an instant that has passed."""
        if self._origin_s is None:
            self._origin_s = time.time_ns() / 1e9 - self.now()
        return self._origin_s + instant

    def has_passed(self, instant: float) -> bool:
        """Return whether an instant has passed, without waiting."""
        del instant
        return True

    def wait(self, instant: float) -> None:
        """Wait until an instant has passed."""


class DeviceInstants:
    """Instants of an accelerator: events in its current stream; see `HostInstants` for the methods.

    By default, a query of an event in any thread invalidates a CUDA graph capture. The accelerator is not
    necessarily the program's current device.
    """

    of_device: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = self._last = self._recorded()
        self._origin.synchronize()
        self._epoch_s = time.time_ns() / 1e9

    def now(self) -> torch.Event:
        """Return the current instant; during a graph capture nothing runs, so it is the last one."""
        if not is_captured(self._device):
            self._last = self._recorded()
        return self._last

    def _recorded(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def between(self, before: torch.Event, after: torch.Event) -> float:
        """See `HostInstants`."""
        return before.elapsed_time(after) / 1000

    def epoch_s(self, instant: torch.Event) -> float:
        """See `HostInstants`."""
        return self._epoch_s + self.between(self._origin, instant)

    def has_passed(self, instant: torch.Event) -> bool:
        """See `HostInstants`."""
        return bool(instant.query())

    def wait(self, instant: torch.Event) -> None:
        """See `HostInstants`."""
        instant.synchronize()


Instants: TypeAlias = HostInstants | DeviceInstants
