"""Records the last training step of each worker where its launcher can read it, however the worker ends."""

import mmap
import struct
from dataclasses import dataclass

_SLOT = struct.Struct("<q")


class LastSteps:
    """The last steps of several workers, in memory that the processes forked from this one share.

    The workers are forked after this object is made.
    """

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, workers * _SLOT.size)
        self._workers = workers

    def use_here(self, worker: int) -> None:
        """Make `record_step` write to the slot of `worker`, which this process is."""
        _here.memory, _here.offset = self._memory, worker * _SLOT.size

    def latest(self) -> int | None:
        """Return the largest step that any worker has recorded; None where none has recorded any."""
        slots = (_SLOT.unpack_from(self._memory, k * _SLOT.size)[0] for k in range(self._workers))
        furthest = max(slots)
        return furthest - 1 if furthest else None


@dataclass
class _Here:
    """The slot that this process writes its step to, if a launcher reads it."""

    memory: mmap.mmap | None = None
    offset: int = 0


_here = _Here()


def record_step(step: int) -> None:
    """Record the number of steps that the training has finished, restarts included."""
    if _here.memory is not None:
        _SLOT.pack_into(_here.memory, _here.offset, step + 1)
