"""Runs the collectives of ranks on one host through memory that they share, if they can share any.

Hostnames do not prove that ranks share a host: containers of one host have several, and containers of several
hosts can have the same. So rank 0 makes a file without a name in the shared-memory file system, and sends its
process id, the file descriptor and random content; a rank that reads this content there shares the memory.
When the last process ends, however it ends, the memory is freed.
"""

import errno
import mmap
import os
import platform
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import torch
from torch import Tensor

from samestep.base.machine.description import cpu_share, enough_for_all
from samestep.base.units import bytes_text
from samestep.ranks.collectives.call_counter import SHARED_MEMORY, progress_of
from samestep.ranks.collectives.semaphores import Semaphores, own_process
from samestep.ranks.collectives.shared_memory import SharedMemory, bytes_needed
from samestep.ranks.world.operation import Folding, Op, check_operation, check_root
from samestep.ranks.world.process_group import rank_in_job
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World

FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - shared memory is what is wanted
_MARK = 32
_printed: set[str] = set()  # reasons against shared memory that this process has printed


def on_one_host(world: World, *, timeout_s: float | None = None) -> World:
    """Return a world whose collectives use shared memory; `world` itself where its ranks cannot share any.

    All ranks call this. `timeout_s` limits the wait for another rank, by default to that of `world`.

    If the ranks are processes of one host, rank 0 prints the reason, once.
    """
    rank, size = world.place.rank, world.place.size
    if isinstance(world, OneHostWorld):
        return world
    if size == 1 or world.device.type != "cpu" or platform.system() != "Linux":
        return world
    own_rank, job_size = rank_in_job(world)
    gathered = world.all_gather_objects((own_process(), gethostname(), cpu_share(), own_rank))
    processes, hosts, shares, ranks = (list(each) for each in zip(*gathered, strict=True))
    if len(set(processes)) < size:  # ranks are threads of one process
        return world
    try:
        memory = segment(world, bytes_needed(size))
    except NoSharedMemory as reason:
        if len(set(hosts)) == 1 and world.place.is_main:
            _print_once(str(reason))
        return world
    timeout_s = world.timeout_s if timeout_s is None else timeout_s
    semaphores = Semaphores(
        memory, processes, rank=rank, may_spin=enough_for_all(shares), timeout_s=timeout_s
    )
    world.barrier()
    progress = progress_of(ranks, job_size, SHARED_MEMORY)
    shared = SharedMemory(memory, rank=rank, size=size, semaphores=semaphores, progress=progress)
    return OneHostWorld(world, shared)


_ELSEWHERE = f"has no access to the file of rank 0 in {FILE_SYSTEM}, as in separate containers"


class NoSharedMemory(Exception):  # noqa: N818 - names the state
    """The ranks have no shared memory; the message has the reason."""


def segment(world: World, size: int) -> mmap.mmap:
    """Return `size` bytes of memory that all ranks share, filled with zeros.

    All ranks call this. All pages are allocated now, so that a later write cannot fail.

    Raises:
        NoSharedMemory: the ranks cannot share memory; on all ranks, with the same reason.
    """
    file, offered = _offer(size) if world.place.is_main else (None, "")
    try:
        offered = world.broadcast_object(offered)
        if isinstance(offered, str):
            raise NoSharedMemory(offered)
        mapped = _map(offered, size, file=file)
        reasons = world.all_gather_objects(mapped if isinstance(mapped, str) else "")
    finally:
        if file is not None:
            os.close(file)
    if isinstance(mapped, str) or any(reasons):
        rank, reason = next((rank, reason) for rank, reason in enumerate(reasons) if reason)
        raise NoSharedMemory(f"rank {rank} {reason}")
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


@dataclass(frozen=True, slots=True)
class _Offer:
    """A file of rank 0 in shared memory."""

    path: Path
    mark: bytes  # its first bytes
    device: int  # the number of the file system


def _offer(size: int) -> tuple[int | None, _Offer | str]:
    """Return a new file and its description; or None and the reason."""
    try:
        file = _make(size)
    except OSError as error:
        return None, _why_not(size, error)
    return file, _Offer(_path(file), os.pread(file, _MARK, 0), os.fstat(file).st_dev)


def _make(size: int) -> int:
    """Make the file; return its descriptor."""
    file = os.open(FILE_SYSTEM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, secrets.token_bytes(_MARK), 0)
    except OSError:
        os.close(file)
        raise
    return file


def _why_not(size: int, error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"{FILE_SYSTEM}: {error.strerror}"
    held = os.statvfs(FILE_SYSTEM)
    free, total = (bytes_text(blocks * held.f_frsize) for blocks in (held.f_bavail, held.f_blocks))
    return f"{FILE_SYSTEM} has {free} free of {total}, and {bytes_text(size)} are needed"


def _path(file: int) -> Path:
    """Return the path under which processes of this host and PID namespace open this process's file."""
    return Path(f"/proc/{os.getpid()}/fd/{file}")


def _map(offer: _Offer, size: int, *, file: int | None = None) -> mmap.mmap | str:
    """Return the memory of rank 0's file, or why there is none; rank 0 has it open as `file`."""
    try:
        # The path also leads to a file in a file system that is mounted for rank 0 only.
        if FILE_SYSTEM.stat().st_dev != offer.device:
            return _ELSEWHERE
        with ExitStack() as stack:
            number = stack.enter_context(offer.path.open("r+b")).fileno() if file is None else file
            mapped = mmap.mmap(number, size)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOMEM:
            return f"may not map {bytes_text(size)} (ulimit -v)"
        return _ELSEWHERE
    return mapped if mapped[:_MARK] == offer.mark else _ELSEWHERE


def _print_once(reason: str) -> None:
    if reason not in _printed:
        _printed.add(reason)
        sys.stderr.write(
            f"samestep: shared memory is not used: {reason}. The process group's back end carries the "
            "tensors.\n"
        )


class OneHostWorld(RelayedWorld):
    """World whose collectives use shared memory; `inner` carries objects, and tensors that memory cannot."""

    def __init__(self, inner: World, memory: SharedMemory) -> None:
        super().__init__(inner)
        self._memory = memory

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        if is_plain(tensor):
            self._memory.all_reduce(tensor, op=op)
        else:
            self._by_back_end(f"all_reduce({op})", tensor).all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; it runs to the end here, faster than the back end starts it."""
        if not is_plain(tensor):
            return self._by_back_end("all_reduce(sum)", tensor).all_reduce_later(tensor)
        self._memory.all_reduce(tensor)
        return CompletedWork()

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`; it runs to the end here, like `all_reduce_later`."""
        if not is_plain(tensor):
            return self._by_back_end("average", tensor).average_later(tensor)
        self._memory.average(tensor)
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        check_root(src, self.place.size)
        if is_plain(tensor):
            self._memory.broadcast(tensor, src)
        else:
            self._by_back_end(f"broadcast from {src}", tensor).broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        if not is_plain(tensor):
            return self._by_back_end("all_gather", tensor).all_gather(tensor)
        return self._memory.all_gather(tensor)

    def agree(self, call: str, tensor: Tensor) -> None:
        """Return if all ranks make the same call; see `samestep.ranks.collectives.consistency_check`."""
        self._memory.agree(call, tensor)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """See `samestep.ranks.collectives.custom_reduction`."""
        self._memory.fold(parts, counts, folding)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self._memory.barrier()

    def _by_back_end(self, call: str, tensor: Tensor) -> World:
        """Return the world that runs a call which shared memory cannot, after comparing it across ranks.

        Without the comparison, a rank that makes another call would wait in shared memory forever.
        """
        self._memory.agree(f"{call} by the back end", tensor)
        return self.inner


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is in the memory of the host, as numbers with strides."""
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype is not torch.bool
