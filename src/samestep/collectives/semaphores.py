"""Semaphores of POSIX in shared memory: one for each pair of ranks and direction.

A semaphore is the one primitive that orders memory on every processor, sleeps by itself, and can be waited
for with an end, so that a rank that died is noticed.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from samestep.base.errors import PeerLost

Process: TypeAlias = tuple[int, str]
SIZE = 64
"""Bytes for each: one cache line, which no other one shares."""
_LOOKS, _YIELDS = 100, 4000
"""Looks before a rank goes to sleep: at once, and with the processor offered to others between; some ms."""
_SLICE_S = 0.1
"""How long a sleeping rank sleeps before it looks whether the others live."""

_libc = ctypes.CDLL(None, use_errno=True)
_quick = ctypes.PyDLL(None)
"""The same library, called without giving up the interpreter: for what returns at once."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Semaphores:
    """The semaphores of all pairs of ranks.

    The ranks may use them once all of them have made this.

    Args:
        memory: shared; they take its first ``SIZE`` bytes for each pair of ranks.
        processes: of all ranks, as `own_process` names them.
        rank: of this process.
        may_spin: whether there is a processor for each rank.
        timeout_s: how long to wait for another rank.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        processes: Sequence[Process],
        *,
        rank: int,
        may_spin: bool,
        timeout_s: float,
    ) -> None:
        size = len(processes)
        self._memory = (ctypes.c_char * (SIZE * size * size)).from_buffer(memory)
        start = ctypes.addressof(self._memory)
        others = [other for other in range(size) if other != rank]
        self._to = [ctypes.c_void_p(start + SIZE * (rank * size + other)) for other in others]
        self._from = {other: ctypes.c_void_p(start + SIZE * (other * size + rank)) for other in others}
        self._yields = _YIELDS if may_spin else 1
        self._timeout_s = timeout_s
        self._processes = processes
        for semaphore in self._from.values():  # each rank makes those that it waits for
            if _libc.sem_init(semaphore, 1, 0):
                raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self) -> None:
        """Tell all other ranks that this one has come so far."""
        for semaphore in self._to:
            _quick.sem_post(semaphore)

    def wait(self) -> None:
        """Return once all other ranks have told so as well.

        Raises:
            PeerLost: one has died, or does not come in time.
        """
        for rank, semaphore in self._from.items():
            if not self._comes_soon(semaphore):
                self._sleep(rank, semaphore)

    def _comes_soon(self, semaphore: ctypes.c_void_p) -> bool:
        """Look without sleeping, which costs hundreds of microseconds on many machines, for a while."""
        trywait = _quick.sem_trywait
        for _ in range(_LOOKS):
            if not trywait(semaphore):
                return True
        for _ in range(self._yields):
            os.sched_yield()  # whoever else wants this processor may be who is waited for
            if not trywait(semaphore):
                return True
        return False

    def _sleep(self, rank: int, semaphore: ctypes.c_void_p) -> None:
        """Return once `rank` has told; meanwhile look whether any that have not told yet have died."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            until = time.clock_gettime(time.CLOCK_REALTIME) + _SLICE_S
            limit = _Timespec(int(until), int(until % 1 * 1e9))
            if not _libc.sem_timedwait(semaphore, ctypes.byref(limit)):
                return
            for other, its in self._from.items():
                if other >= rank and not self._lives(other) and not _has_told(its):
                    raise PeerLost(f"rank {other} has died while this one waited for it.")
            if time.monotonic() > deadline:
                raise PeerLost(f"rank {rank} did not come within {self._timeout_s:g} s.")

    def _lives(self, rank: int) -> bool:
        pid, space = self._processes[rank]
        if not pid or space != own_process()[1]:
            return True  # it cannot be seen from here
        with suppress(OSError):
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        return False


def _has_told(semaphore: ctypes.c_void_p) -> bool:
    count = ctypes.c_int()
    _quick.sem_getvalue(semaphore, ctypes.byref(count))
    return count.value > 0


def own_process() -> Process:
    """Return this process's id, and the name of the space of process ids that it lives in."""
    try:
        return os.getpid(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return 0, ""
