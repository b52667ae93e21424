"""Records the last training step of each worker where its launcher can read it, however the worker ends."""

import mmap
import struct
from dataclasses import dataclass

_SLOT = struct.Struct("<q")


class LastSteps:
    """The last steps of several workers, in memory that the processes forked from this one share.

    Args:
        workers: how many there are; made before they are forked.
    """

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, workers * _SLOT.size)
        self._workers = workers

    def use_here(self, worker: int) -> None:
        """In a worker: have `record_step` write to its place."""
        _here.memory, _here.offset = self._memory, worker * _SLOT.size

    def latest(self) -> int | None:
        """Return the last step of the worker that has come furthest; None where none has recorded any."""
        slots = (_SLOT.unpack_from(self._memory, k * _SLOT.size)[0] for k in range(self._workers))
        furthest = max(slots)
        return furthest - 1 if furthest else None


@dataclass
class _Here:
    """Where this process records its step; nowhere if no launcher reads it."""

    memory: mmap.mmap | None = None
    offset: int = 0


_here = _Here()


def record_step(step: int) -> None:
    """Record that this process stands after a step of its training, counted over all its starts.

    Args:
        step: 0 before the first.
    """
    if _here.memory is not None:
        _SLOT.pack_into(_here.memory, _here.offset, step + 1)
