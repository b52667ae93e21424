"""Defines instants, and records those at which a step changes its phase; the phases add up to the step.

An instant is a time on the host, or an event in the stream of an accelerator::

    other | data | forward ...  exposed_sync | forward | backward ... | exposed_sync | optimizer |
          ^      ^              ^            ^         ^              ^              ^           ^ step ends

On CPUs, communication (threads of the back end, the system's network) computes while backward does. Where
there are no more cores than ranks, backward's thread waits for a core meanwhile::

    backward's thread    layer 4 . layer 3 .......... layer 2 .......... layer 1 |
    communication                          bucket 0            bucket 1          | bucket 2 waited for

`ContentionEstimator` estimates how much of backward is communication: the time in which backward's thread was
runnable and had no core, less what other processes account for; time asleep or waiting for a disk does not
count. The share of other processes is measured in forward, which overlaps with no communication. By chance
they take more of forward than of backward, and the estimate of a step is negative: that is subtracted from
the following steps, never from measured waits.

The counters are read in the first steps and then in one of 16: each read takes some 10 us after a model's
work, and the clock may take 1 % of a step. Steps between have the same share of backward as those.
"""

import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch

from samestep.base.step_phases import ALL, BACKWARD, EXCHANGE, FORWARD, OTHER

COMPUTING = (FORWARD, BACKWARD)
"""The phases in which the thread's CPU time is measured."""
_DECAY = 0.9  # weight of the sums so far when a step is added to them
_ALL, _EVERY = 8, 16
"""The first steps are all sampled; then one of so many."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class CpuUse(NamedTuple):
    """CPU time of a thread, in seconds."""

    ran: float = 0.0
    delayed: float = 0.0  # time in which the thread was runnable and waited for a core


Readings: TypeAlias = list[Any]
"""CPU readings of a thread, each preceded by the phase that ended with it."""


def cpu_use(readings: Readings) -> dict[str, CpuUse]:
    """Return the CPU time of a thread in each phase of `COMPUTING`."""
    used = dict.fromkeys(COMPUTING, CpuUse())
    for phase, (before, after) in zip(readings[2::2], pairwise(readings[1::2]), strict=False):
        if phase in COMPUTING:
            sofar = used[phase]
            used[phase] = CpuUse(
                sofar.ran + after.ran - before.ran, sofar.delayed + after.delayed - before.delayed
            )
    return used


def is_sampled(step: int) -> bool:
    """Return whether the counters are read in a step.

    The step is numbered among the recorded steps with overlapped communication; negative during warm-up.
    """
    return step < _ALL or step % _EVERY == 0


class ThreadCpuClock:
    """Reads how long the thread that created it has run and waited for a core.

    Raises:
        OSError: the system does not count this (Linux without ``CONFIG_SCHED_INFO``, other systems).
    """

    def __init__(self) -> None:
        self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> CpuUse:
        """Return both times so far."""
        try:
            delayed = int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except OSError:  # in a fork of the script, where the thread does not exist
            delayed = 0.0
        return CpuUse(time.thread_time(), delayed)


def thread_cpu_clock() -> ThreadCpuClock | None:
    """Return the clock of this thread; None where the system does not count."""
    try:
        return ThreadCpuClock()
    except OSError:
        return None


class ContentionEstimator:
    """Estimates the communication within backward, from the steps in their order."""

    def __init__(self) -> None:
        self._ran = self._delayed = 0.0
        self._deficit = 0.0  # sum of the negative estimates that no later step has made up for; at most 0
        self._overlapped = self._backward = 0.0
        """Of the sampled steps: seconds of backward that were communication, and seconds of backward."""

    def of(self, seconds: Mapping[str, float], cpu: Mapping[str, CpuUse] | None) -> float:
        """Return the seconds of a step's backward that are communication.

        `cpu` is the thread's CPU time in forward and backward; None if the step was not sampled.
        """
        if cpu is None:
            return self._overlapped / self._backward * seconds[BACKWARD] if self._backward else 0.0
        forward, backward = cpu[FORWARD], cpu[BACKWARD]
        self._ran = _DECAY * self._ran + forward.ran
        self._delayed = _DECAY * self._delayed + forward.delayed
        by_others = self._delayed / self._ran * backward.ran if self._ran else 0.0
        estimate = self._deficit + backward.delayed - by_others
        self._deficit = min(0.0, estimate)
        # The delay includes that of DDP's copies, which backward's seconds do not: take its share at most.
        most = seconds[BACKWARD] * backward.delayed / (backward.ran + backward.delayed or 1.0)
        overlapped = max(0.0, min(most, estimate))
        self._overlapped = _DECAY * self._overlapped + overlapped
        self._backward = _DECAY * self._backward + seconds[BACKWARD]
        return overlapped


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


MAX_MARKS = 1 << 16
"""Maximum length of a step's list of marks; only a step that never ends exceeds it, as with graph replays."""


class Phases:
    """The current phase of a script, and the phases of its current step.

    Marks are a flat list. Once it has `MAX_MARKS` items, the time so far becomes `OTHER`. The reader of the
    events sets the current instant.
    """

    def __init__(self, instant: Any) -> None:
        self.instant = instant
        self.cpu = CpuUse()  # CPU time that the script's thread has had until that instant
        self._readings: Readings | None = None  # CPU readings of this step; None if it is not sampled
        self.phase = OTHER
        self._marks: list[Any] = [OTHER, self.instant]
        """Each phase that has ended and its end; the first mark is the end of the step before."""

    def switch(self, phase: str) -> str:
        """Begin `phase`; return the phase that this ends."""
        before = self.phase
        if phase != before:
            self.mark(before)
            if self._readings is not None and (before in COMPUTING or phase in COMPUTING):
                self._read(before)
            self.phase = phase
        return before

    def _read(self, before: str) -> None:
        assert self._readings is not None
        self._readings += before, self.cpu
        if len(self._readings) >= MAX_MARKS:
            del self._readings[:-2]

    def mark(self, phase: str) -> None:
        """Record that the script has been in `phase` since the last mark."""
        marks = self._marks
        marks += phase, self.instant
        if len(marks) >= MAX_MARKS:
            marks[2:] = OTHER, marks[-1]

    def cut(self) -> tuple[list[Any], Readings | None]:
        """End the step, begin the next in phase `OTHER`, and return marks and CPU readings, if recorded."""
        marks, readings = self._marks, self._readings
        marks += self.phase, self.instant
        self._marks, self._readings, self.phase = marks[-2:], None, OTHER
        return marks, readings

    def begin_readings(self) -> None:
        """Record CPU readings until the end of the step."""
        self._readings = []


@dataclass(slots=True)
class ClockedStep:
    """One step with its measurements."""

    number: int  # the step's number in the run, from 0
    marks: list[Any]  # see `Phases.cut`
    samples: int  # rows of this rank in training calls
    evaluated: bool  # whether the step contains an evaluation
    gradient_bytes: int | None = None  # bytes of gradients that this rank sent; None if unknown
    overlaps: bool = False  # whether communication overlapped with backward
    # CPU readings, by which overlapped communication is estimated; None if not sampled
    readings: Readings | None = None
    loaded: int | None = None  # samples of the batches that were loaded; None if unknown
    elements: int = 0  # elements of the input tensors of training calls

    @property
    def end(self) -> Any:
        """The instant at which the step ended."""
        return self.marks[-1]

    def seconds(self, instants: Instants) -> dict[str, float]:
        """Return the seconds of each phase between the marks; the last instant must have passed."""
        seconds, marks, between = dict.fromkeys(ALL, 0.0), self.marks, instants.between
        for number in range(3, len(marks), 2):
            seconds[marks[number - 1]] += between(marks[number - 2], marks[number])
        return seconds

    def line(self, instants: Instants, contention: ContentionEstimator) -> dict[str, Any]:
        """Return the step as one line of the clock file; its last instant must have passed."""
        seconds = self.seconds(instants)
        if self.overlaps:
            exposed = contention.of(seconds, None if self.readings is None else cpu_use(self.readings))
            seconds[BACKWARD] -= exposed
            seconds[EXCHANGE] += exposed
        line: dict[str, Any] = {
            "step": self.number,
            "at": instants.epoch_s(self.marks[1]),
            "seconds": sum(seconds.values()),
            "samples": self.samples,
            "loaded": self.loaded,
            "elements": self.elements,
            "exchange_bytes": self.gradient_bytes,
            **seconds,
        }
        return {**line, "evaluated": True} if self.evaluated else line
