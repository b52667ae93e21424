"""Synchronizes ranks by POSIX semaphores in shared memory: one for each ordered pair of ranks.

A semaphore is the one primitive that orders memory on every processor, sleeps without spinning, and can be
waited for with a timeout, which detects a rank that died.
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
from samestep.base.machine.kernel_files import name_space

Process: TypeAlias = tuple[int, str]
SIZE = 64
"""Bytes per semaphore: a cache line of its own."""
_SPINS, _YIELDS = 100, 4000
"""Polls before a rank sleeps: without, and then with a yield of the core between them; some ms in all.
A guess: waits are mostly shorter where each rank has a core, and a sleep costs hundreds of microseconds."""
_SLICE_S = 0.1  # seconds of sleep between checks that the other ranks are alive: a guess
_libc = ctypes.CDLL(None, use_errno=True)
_quick = ctypes.PyDLL(None)
"""The same library, called without releasing the GIL: for calls that return at once."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Semaphores:
    """The semaphores of all pairs of ranks, which one of the ranks initializes before any of them uses one.

    They take the first ``SIZE`` bytes of `memory` for each pair of ranks. `processes` are those of all ranks,
    as `own_process` returns them; `may_spin` is whether there is a core for each rank.
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
        peers = [peer for peer in range(size) if peer != rank]
        self._to_rank = {peer: ctypes.c_void_p(start + SIZE * (rank * size + peer)) for peer in peers}
        self._to = [*self._to_rank.values()]
        self._from = {peer: ctypes.c_void_p(start + SIZE * (peer * size + rank)) for peer in peers}
        self._yields = _YIELDS if may_spin else 1
        self._timeout_s = timeout_s
        self._processes = processes

    def post(self) -> None:
        """Signal all other ranks."""
        for semaphore in self._to:
            _quick.sem_post(semaphore)

    def wait(self) -> None:
        """Return once all other ranks have signaled this one.

        Raises:
            PeerLost: a rank has died, or does not signal in time.
        """
        for rank, semaphore in self._from.items():
            if not self._poll(semaphore):
                awaited = [peer for peer in self._from if peer >= rank]
                self._sleep(rank, semaphore, awaited, timeout_s=self._timeout_s)

    def signal(self, rank: int) -> None:
        """Signal one rank."""
        _quick.sem_post(self._to_rank[rank])

    def await_signal(self, rank: int, *, timeout_s: float = float("inf"), polls: bool = True) -> None:
        """Return once a rank has signaled this one; without polls, it sleeps until then.

        Raises:
            PeerLost: the rank has died, or does not signal in time.
        """
        semaphore = self._from[rank]
        if not (polls and self._poll(semaphore)):
            self._sleep(rank, semaphore, [rank], timeout_s=timeout_s)

    def _poll(self, semaphore: ctypes.c_void_p) -> bool:
        """Poll for some ms, because a sleep costs hundreds of microseconds on many machines."""
        trywait = _quick.sem_trywait
        for _ in range(_SPINS):
            if not trywait(semaphore):
                return True
        for _ in range(self._yields):
            os.sched_yield()  # the awaited rank may be waiting for this core
            if not trywait(semaphore):
                return True
        return False

    def _sleep(
        self, rank: int, semaphore: ctypes.c_void_p, awaited: Sequence[int], *, timeout_s: float
    ) -> None:
        """Return once `rank` has signaled; meanwhile check that the awaited ranks are alive."""
        deadline = time.monotonic() + timeout_s
        while True:
            until = time.clock_gettime(time.CLOCK_REALTIME) + _SLICE_S
            limit = _Timespec(int(until), int(until % 1 * 1e9))
            if not _libc.sem_timedwait(semaphore, ctypes.byref(limit)):
                return
            for peer in awaited:
                if not self._is_alive(peer) and not _is_posted(self._from[peer]):
                    raise PeerLost(f"rank {peer} has died while this one waited for it.")
            if time.monotonic() > deadline:
                raise PeerLost(f"rank {rank} did not come within {timeout_s:g} s.")

    def _is_alive(self, rank: int) -> bool:
        pid, space = self._processes[rank]
        if not pid or space != own_process()[1]:
            return True  # another PID namespace cannot be checked
        with suppress(OSError):
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        return False


def initialize(memory: mmap.mmap, size: int) -> None:
    """Initialize the semaphores of all `size` ranks, before any of them uses one."""
    held = (ctypes.c_char * (SIZE * size * size)).from_buffer(memory)
    start = ctypes.addressof(held)
    for number in range(size * size):
        if _libc.sem_init(ctypes.c_void_p(start + SIZE * number), 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init failed")


def _is_posted(semaphore: ctypes.c_void_p) -> bool:
    count = ctypes.c_int()
    _quick.sem_getvalue(semaphore, ctypes.byref(count))
    return count.value > 0


def own_process() -> Process:
    """Return this process's id, and the name of its PID namespace."""
    space = name_space("pid")
    return os.getpid() if space else 0, space
