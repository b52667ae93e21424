"""Defines instants: times on the host, and events in the stream of an accelerator."""

import time
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

import torch

Instant = TypeVar("Instant")


def is_captured(device: torch.device) -> bool:
    """Return whether this thread captures a CUDA graph: work on the device is then recorded, not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Instants(Protocol[Instant]):
    """Creates instants and measures the time between them."""

    of_device: ClassVar[bool]
    """Whether queries are limited to the thread that uses the device, outside a graph capture."""

    def now(self) -> Instant:
        """Return the current instant without waiting."""

    def between(self, before: Instant, after: Instant) -> float:
        """Return the seconds between two instants that have passed."""

    def epoch_s(self, instant: Instant) -> float:
        """Return the Unix time, in seconds, of an instant that has passed."""

    def has_passed(self, instant: Instant) -> bool:
        """Return whether an instant has passed, without waiting."""

    def wait(self, instant: Instant) -> None:
        """Wait until an instant has passed."""


class HostInstants:
    """Instants of the host, where work ends with its code.

    Args:
        now: returns monotonic seconds.
    """

    of_device: ClassVar[bool] = False

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._origin_s: float | None = None
        """Unix time at which `now` is 0."""

    def between(self, before: float, after: float) -> float:
        """See `Instants.between`."""
        return after - before

    def epoch_s(self, instant: float) -> float:
        """See `Instants.epoch_s`."""
        if self._origin_s is None:
            self._origin_s = time.time_ns() / 1e9 - self.now()
        return self._origin_s + instant

    def has_passed(self, instant: float) -> bool:
        """See `Instants.has_passed`."""
        del instant
        return True

    def wait(self, instant: float) -> None:
        """See `Instants.wait`."""


class DeviceInstants:
    """Instants of an accelerator: events in its current stream.

    By default, a query of an event in any thread invalidates a CUDA graph capture.

    Args:
        device: the accelerator; not necessarily the program's current device.
    """

    of_device: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = self._last = self._recorded()
        self._origin.synchronize()
        self._epoch_s = time.time_ns() / 1e9

    def now(self) -> torch.Event:
        """See `Instants.now`; during a graph capture nothing runs, so the last instant is returned."""
        if not is_captured(self._device):
            self._last = self._recorded()
        return self._last

    def _recorded(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def between(self, before: torch.Event, after: torch.Event) -> float:
        """See `Instants.between`."""
        return before.elapsed_time(after) / 1000

    def epoch_s(self, instant: torch.Event) -> float:
        """See `Instants.epoch_s`."""
        return self._epoch_s + self.between(self._origin, instant)

    def has_passed(self, instant: torch.Event) -> bool:
        """See `Instants.has_passed`."""
        return bool(instant.query())

    def wait(self, instant: torch.Event) -> None:
        """See `Instants.wait`."""
        instant.synchronize()
