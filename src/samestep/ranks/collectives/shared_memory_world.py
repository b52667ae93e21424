"""Runs the collectives of ranks on one host through its shared memory."""

import platform
import sys
from collections.abc import Sequence
from socket import gethostname

import torch
from torch import Tensor

from samestep.base.machine.description import cpu_share, enough_for_all
from samestep.ranks.collectives.arithmetic import Folding
from samestep.ranks.collectives.call_counter import progress_of
from samestep.ranks.collectives.semaphores import Semaphores, own_process
from samestep.ranks.collectives.shared_memory import SharedMemory, bytes_needed
from samestep.ranks.collectives.shared_segment import NoSharedMemory, segment
from samestep.ranks.world.forwarding import RelayedWorld
from samestep.ranks.world.operation import Op, refuse, refuse_root
from samestep.ranks.world.process_group import rank_in_job
from samestep.ranks.world.protocol import NothingPending, Pending, World

_printed: set[str] = set()
"""Reasons against shared memory that this process has printed."""


def on_one_host(world: World, *, timeout_s: float | None = None) -> World:
    """Return a world whose collectives use shared memory; `world` itself where its ranks cannot share any.

    If the ranks are processes of one host, rank 0 prints the reason, once.

    Args:
        world: the ranks; all of them call this.
        timeout_s: maximum wait for another rank, in seconds; by default that of `world`.
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
    progress = progress_of(ranks, job_size)
    shared = SharedMemory(memory, rank=rank, size=size, semaphores=semaphores, progress=progress)
    return OneHostWorld(world, shared)


def _print_once(reason: str) -> None:
    if reason not in _printed:
        _printed.add(reason)
        sys.stderr.write(
            f"samestep: shared memory is not used: {reason}. The process group's back end carries the "
            "tensors.\n"
        )


class OneHostWorld(RelayedWorld):
    """A world whose collectives use shared memory.

    Args:
        inner: the world of the same ranks; it carries objects, and tensors that shared memory cannot.
        memory: the shared memory.
    """

    def __init__(self, inner: World, memory: SharedMemory) -> None:
        super().__init__(inner)
        self._memory = memory

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        refuse(op, tensor.dtype)
        if _is_plain(tensor):
            self._memory.all_reduce(tensor, op=op)
        else:
            self._by_back_end(f"all_reduce({op})", tensor).all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Pending:
        """See `World.all_reduce_later`; it runs to the end here, faster than the back end starts it."""
        if not _is_plain(tensor):
            return self._by_back_end("all_reduce(sum)", tensor).all_reduce_later(tensor)
        self._memory.all_reduce(tensor)
        return NothingPending()

    def average_later(self, tensor: Tensor) -> Pending:
        """See `World.average_later`; it runs to the end here, like `all_reduce_later`."""
        if not _is_plain(tensor):
            return self._by_back_end("average", tensor).average_later(tensor)
        self._memory.average(tensor)
        return NothingPending()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        refuse_root(src, self.place.size)
        if _is_plain(tensor):
            self._memory.broadcast(tensor, src)
        else:
            self._by_back_end(f"broadcast from {src}", tensor).broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        if not _is_plain(tensor):
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


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype is not torch.bool
