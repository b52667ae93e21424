"""What an exchange costs that backward hides: the processor, where both need one.

On processors those who carry gradients (threads of the back end, the system's network) compute while backward
does, and where there are no more processors than ranks, backward stands still meanwhile::

    backward's thread    layer 4 . layer 3 .......... layer 2 .......... layer 1 |
    carries gradients                      bucket 0            bucket 1          | bucket 2 waited for

That is seen in the time for which the thread could have run and waited for a processor; what it sleeps, or
waits for a disk, is not in it. How much of it others take is told by forward, which hides no exchange; by
chance they take more of it than of backward, and then less than nothing is left for the exchange. That is
taken off what the steps after have, and never off what one demonstrably waited for.

The system is asked in the first steps and then in some: after a model's work each question takes some 10 us,
and what a step may be clocked by is 1 % of it. Steps between have the share of backward that those had.
"""

import os
import time
import weakref
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from samestep.base.phases import BACKWARD, FORWARD

COMPUTING = (FORWARD, BACKWARD)
"""The phases of which it is known what the thread had of its processor."""
_KEPT = 0.9
"""How much of what was known counts after another step that tells."""
_ALL, _EVERY = 8, 16
"""The first steps are all asked for; then one of so many."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Processor(NamedTuple):
    """What a thread has had of its processor, in seconds."""

    ran: float = 0.0
    delayed: float = 0.0
    """Could have run, and waited for a processor."""


Readings: TypeAlias = list[Any]
"""Of a thread's processor: before each, the phase that ended with it."""


def had(readings: Readings) -> dict[str, Processor]:
    """Return what a thread had of its processor in each of `COMPUTING`."""
    found = dict.fromkeys(COMPUTING, Processor())
    for phase, (before, after) in zip(readings[2::2], pairwise(readings[1::2]), strict=False):
        if phase in COMPUTING:
            sofar = found[phase]
            found[phase] = Processor(
                sofar.ran + after.ran - before.ran, sofar.delayed + after.delayed - before.delayed
            )
    return found


def is_to_be_read(step: int) -> bool:
    """Return whether the system is asked in a step that hides an exchange, by its number among those.

    Args:
        step: that number; less than 0 before the steps that are taken down.
    """
    return step < _ALL or step % _EVERY == 0


class ProcessorClock:
    """Tells how long the thread that made it has run and waited for a processor; Linux counts both.

    Raises:
        OSError: the system does not tell (Linux without ``CONFIG_SCHED_INFO``, other systems).
    """

    def __init__(self) -> None:
        self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> Processor:
        """Return both so far."""
        try:
            delayed = int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except OSError:  # in a fork of the script, and the thread is gone
            delayed = 0.0
        return Processor(time.thread_time(), delayed)


def processor_clock() -> ProcessorClock | None:
    """Return the clock of this thread; None where the system does not tell."""
    try:
        return ProcessorClock()
    except OSError:
        return None


class Stolen:
    """Tells it of each step, in their order."""

    def __init__(self) -> None:
        self._ran = self._delayed = 0.0
        self._owed = 0.0
        """What was less than nothing in the steps before; no more than that."""
        self._taken = self._backward = 0.0
        """Of the steps that told, seconds of backward that were exchange; and all of it."""

    def of(self, seconds: Mapping[str, float], processor: Mapping[str, Processor] | None) -> float:
        """Return the seconds of a step's backward that are exchange.

        Args:
            seconds: of its phases.
            processor: what the thread had of it in its forward and its backward; None where nobody asked.
        """
        if processor is None:
            return self._taken / self._backward * seconds[BACKWARD] if self._backward else 0.0
        forward, backward = processor[FORWARD], processor[BACKWARD]
        self._ran = _KEPT * self._ran + forward.ran
        self._delayed = _KEPT * self._delayed + forward.delayed
        by_others = self._delayed / self._ran * backward.ran if self._ran else 0.0
        found = self._owed + backward.delayed - by_others
        self._owed = min(0.0, found)
        # DDP's copies are no backward, and what they waited is in its delay: never more than its part of it.
        most = seconds[BACKWARD] * backward.delayed / (backward.ran + backward.delayed or 1.0)
        taken = max(0.0, min(most, found))
        self._taken = _KEPT * self._taken + taken
        self._backward = _KEPT * self._backward + seconds[BACKWARD]
        return taken
