"""What a moment is, on a processor and in the queue of an accelerator."""

import time
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

import torch

Instant = TypeVar("Instant")


def is_captured(device: torch.device) -> bool:
    """Return whether what this thread gives a device to do now is kept in a CUDA graph, and not done yet."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Instants(Protocol[Instant]):
    """Takes moments, and tells what lies between them."""

    of_device: ClassVar[bool]
    """Whether only the thread that works on a device may ask, and not while a graph is captured."""

    def now(self) -> Instant:
        """Return this moment; waits for nothing."""

    def between(self, before: Instant, after: Instant) -> float:
        """Return the seconds between two moments that have passed."""

    def epoch_s(self, instant: Instant) -> float:
        """Return the seconds since the epoch of a moment that has passed."""

    def has_passed(self, instant: Instant) -> bool:
        """Return whether a moment has passed; waits for nothing."""

    def wait(self, instant: Instant) -> None:
        """Return once a moment has passed."""


class HostInstants:
    """Moments of the processor, where a thing is over when its code is.

    Args:
        now: returns seconds; must never go backwards.
    """

    of_device: ClassVar[bool] = False

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._origin_s: float | None = None
        """Since the epoch, where `now` is 0."""

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
    """Moments of an accelerator: events in its queue. Only the first one is waited for, here.

    What CUDA is asked of an event while it captures a graph spoils the capture, by default whichever thread
    asks.

    Args:
        device: whose queue; the program's current device may be another.
    """

    of_device: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = self._last = self._recorded()
        self._origin.synchronize()
        self._epoch_s = time.time_ns() / 1e9

    def now(self) -> torch.Event:
        """See `Instants.now`; nothing runs while a graph is captured, and it is still the moment before."""
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
