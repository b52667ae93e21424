"""A world whose ranks share a host, and exchange what lies in its memory through that memory."""

import platform
import sys
from collections.abc import Sequence
from socket import gethostname

import torch
from torch import Tensor

from samestep.base.machine import cpu_share, enough_for_all
from samestep.collectives.arithmetic import Folding
from samestep.collectives.progress import progress_of
from samestep.collectives.segment import Apart, segment
from samestep.collectives.semaphores import Semaphores, own_process
from samestep.collectives.shared_memory import SharedMemory, bytes_needed
from samestep.world.operation import Op, refuse, refuse_root
from samestep.world.process_group import rank_in_job
from samestep.world.relayed import RelayedWorld
from samestep.world.world import NothingPending, Pending, World

_told: set[str] = set()
"""The reasons for exchanging otherwise that have been told."""


def on_one_host(world: World, *, timeout_s: float | None = None) -> World:
    """Return a world that exchanges tensors through shared memory; `world` itself where its ranks cannot.

    Where they are processes of one host, rank 0 says why not, once.

    Args:
        world: the ranks; all of them call this.
        timeout_s: how long to wait for another rank; by default as long as `world` does.
    """
    rank, size = world.place.rank, world.place.size
    if isinstance(world, OneHostWorld):
        return world
    if size == 1 or world.device.type != "cpu" or platform.system() != "Linux":
        return world
    own_rank, job_size = rank_in_job(world)
    told = world.all_gather_objects((own_process(), gethostname(), cpu_share(), own_rank))
    processes, hosts, shares, ranks = (list(each) for each in zip(*told, strict=True))
    if len(set(processes)) < size:  # ranks that are threads have each other's memory already
        return world
    try:
        memory = segment(world, bytes_needed(size))
    except Apart as reason:
        if len(set(hosts)) == 1 and world.place.is_main:
            _tell(str(reason))
        return world
    timeout_s = world.timeout_s if timeout_s is None else timeout_s
    semaphores = Semaphores(
        memory, processes, rank=rank, may_spin=enough_for_all(shares), timeout_s=timeout_s
    )
    world.barrier()
    progress = progress_of(ranks, job_size)
    shared = SharedMemory(memory, rank=rank, size=size, semaphores=semaphores, progress=progress)
    return OneHostWorld(world, shared)


def _tell(reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        sys.stderr.write(
            f"samestep: shared memory is not used: {reason}. Tensors go through the process group's "
            "back end.\n"
        )


class OneHostWorld(RelayedWorld):
    """The ranks of a world that share a host.

    Args:
        inner: the world; what is no tensor in the host's memory goes through it.
        memory: what they share.
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
            self._elsewhere(f"all_reduce({op})", tensor).all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Pending:
        """See `World.all_reduce_later`; it is done at once, which takes less than to begin it elsewhere."""
        if not _is_plain(tensor):
            return self._elsewhere("all_reduce(sum)", tensor).all_reduce_later(tensor)
        self._memory.all_reduce(tensor)
        return NothingPending()

    def average_later(self, tensor: Tensor) -> Pending:
        """See `World.average_later`; as `all_reduce_later`."""
        if not _is_plain(tensor):
            return self._elsewhere("average", tensor).average_later(tensor)
        self._memory.average(tensor)
        return NothingPending()

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """See `World.broadcast`."""
        refuse_root(source, self.place.size)
        if _is_plain(tensor):
            self._memory.broadcast(tensor, source=source)
        else:
            self._elsewhere(f"broadcast from {source}", tensor).broadcast(tensor, source=source)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        if not _is_plain(tensor):
            return self._elsewhere("all_gather", tensor).all_gather(tensor)
        return self._memory.all_gather(tensor)

    def agree(self, call: str, tensor: Tensor) -> None:
        """Return if all ranks make the same call; see `samestep.collectives.agree`."""
        self._memory.agree(call, tensor)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """See `samestep.collectives.fold`."""
        self._memory.fold(parts, counts, folding)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self._memory.barrier()

    def _elsewhere(self, call: str, tensor: Tensor) -> World:
        """Return what carries what the memory does not, once the ranks have found that all make this call.

        A rank that makes another one may wait in the memory for those that would never come there.
        """
        self._memory.agree(f"{call} by the back end", tensor)
        return self.inner


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype is not torch.bool
