"""Estimates how much of backward is communication that competes with it for the cores.

On CPUs, communication (threads of the back end, the system's network) computes while backward does. Where
there are no more cores than ranks, backward's thread waits for a core meanwhile::

    backward's thread    layer 4 . layer 3 .......... layer 2 .......... layer 1 |
    communication                          bucket 0            bucket 1          | bucket 2 waited for

The estimate is the time in which backward's thread was runnable and had no core, less what other processes
account for; time asleep or waiting for a disk does not count. The share of other processes is measured in
forward, which overlaps with no communication. By chance they take more of forward than of backward, and the
estimate of a step is negative: that is subtracted from the following steps, never from measured waits.

The counters are read in the first steps and then in one of 16: each read takes some 10 us after a model's
work, and the clock may take 1 % of a step. Steps between have the same share of backward as those.
"""

import os
import time
import weakref
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from samestep.base.step_phases import BACKWARD, FORWARD

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
