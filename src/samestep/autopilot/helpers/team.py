"""Connects the main process and its helpers on one host: memory for messages, and a world for collectives.

The memory of a team is used once: if a helper is lost, all of them are started again, with new memory.
"""

import pickle
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from samestep.autopilot.helpers.messages import HelperLine, Line, MainLine, bytes_of_line
from samestep.autopilot.helpers.shared_storage import MemoryFile, mapped_file
from samestep.autopilot.split.slice_context import OtherRankFailedError
from samestep.base.errors import OutOfStep, PeerLost, WorldError
from samestep.base.place import Place
from samestep.ranks.collectives.call_signature import NOTHING
from samestep.ranks.collectives.semaphores import Process, Semaphores, initialize, own_process
from samestep.ranks.collectives.shared_memory import SharedMemory, bytes_needed
from samestep.ranks.hang.flight_recorder import SHARED_MEMORY, progress_of
from samestep.ranks.world.operation import Op, check_operation, check_root
from samestep.ranks.world.protocol import CompletedWork, DerivedWorld, Work, World

T = TypeVar("T")
_CPU = torch.device("cpu")


class TeamWorld(World, Protocol):
    """World of the ranks of a team, in which a rank may fail alone, and the others learn it."""

    step: "ExchangeStep"

    def end_check(self) -> None:
        """Return once all ranks have come to the end of a check, and end the exchange.

        Raises:
            OtherRankFailedError: some of them are in a collective of it.
        """

    def fail(self) -> None:
        """Let the collective in which the other ranks are fail on all of them, and end the exchange.

        Raises:
            OtherRankFailedError: the other ranks have not failed, or the exchange has ended before.
        """


class ExchangeStep:
    """Whether this rank is in step with the others in the present check, call or backward.

    Ranks that were in different collectives all learn it at that moment, but at different places of their
    code. So none of them enters another collective of this exchange, which would wait for ranks that have
    left. Each further one raises the error again, since a model may catch it.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None

    def begin(self) -> None:
        """Begin the next exchange, in which all ranks are in step."""
        self._error = None

    @property
    def has_ended(self) -> bool:
        """Whether this rank has learned that the ranks are not in step: an error of its own may follow."""
        return self._error is not None

    @contextmanager
    def collective(self, *, ends: bool = False) -> Iterator[None]:
        """Run a collective in the block, the last one if it `ends` the exchange.

        Raises:
            OtherRankFailedError: the ranks are not in step.
            PeerLost: a rank is lost.
        """
        if self._error is not None:
            raise type(self._error)(str(self._error))
        try:
            yield
        except OutOfStep as error:
            self._error = OtherRankFailedError(str(error))
            raise self._error from None
        except (OtherRankFailedError, PeerLost) as error:
            self._error = error
            raise
        if ends:
            self._error = OtherRankFailedError("the ranks have ended the exchange")


class Team(Protocol):
    """The main rank's view of its helpers."""

    size: int
    """The number of ranks."""
    shares_memory: bool
    """Whether the helpers see the memory of weights."""

    def start(self) -> tuple[TeamWorld, Line]:
        """Start the helpers; return the main rank's world and line.

        Raises:
            PeerLost: they cannot be started, or not again.
            OSError: there is not enough memory.
        """

    def are_alive(self) -> bool:
        """Return whether all helpers run, as far as this process can find out at once."""

    def stop(self) -> None:
        """End the helpers at once; none of them holds anything that would be lost."""

    def close(self) -> None:
        """End the helpers, and all that starts them."""


_MARK = 32
"""Bytes by which a process recognizes the memory: another host may have the same process id."""


@dataclass(frozen=True, slots=True)
class TeamMemory:
    """The memory of a team, and what each process must know to use it."""

    size: int
    """The number of ranks."""
    lines: MemoryFile
    """For messages and answers."""
    collectives: MemoryFile
    main: Process
    timeout_s: float
    """Seconds that a rank waits for another within a call."""
    threads: int
    """Threads with which each rank computes its slices."""
    mark: bytes
    """The last bytes of `lines`."""

    @classmethod
    def new(cls, size: int, *, timeout_s: float, threads: int) -> "TeamMemory":
        """Return new memory, of which this process is the main rank.

        Raises:
            OSError: there is not enough.
        """
        mark = secrets.token_bytes(_MARK)
        with ExitStack() as undo:
            lines, memory = mapped_file(bytes_of_line(size) + _MARK)
            undo.callback(lines.close)
            initialize(memory, size)
            memory[-_MARK:] = mark
            collectives, memory = mapped_file(bytes_needed(size))
            initialize(memory, size)
            undo.pop_all()
        return cls(size, lines, collectives, own_process(), timeout_s, threads, mark)

    def close(self) -> None:
        """Close the files of the main rank."""
        for file in self.lines, self.collectives:
            file.close()

    def main_rank(self, helpers: Sequence[int]) -> tuple[TeamWorld, MainLine]:
        """Return the main rank's world and line, given the helpers' process ids."""
        processes = [self.main, *((process, self.main[1]) for process in helpers)]
        return self._world(0, processes), MainLine(self.lines.opened(), processes, timeout_s=self.timeout_s)

    def helper(self, rank: int) -> tuple[TeamWorld, HelperLine]:
        """Return a helper's world and line.

        Raises:
            OSError: this process cannot reach the memory.
        """
        lines = self.lines.opened()
        if lines[-_MARK:] != self.mark:
            raise FileNotFoundError("this is the memory of another process")
        # The main rank ends the others if one of them is lost.
        processes = [self.main, *[(0, "")] * (self.size - 1)]
        return self._world(rank, processes), HelperLine(lines, processes, rank=rank)

    def _world(self, rank: int, processes: Sequence[Process]) -> "MemoryTeamWorld":
        memory = self.collectives.opened()
        semaphores = Semaphores(memory, processes, rank=rank, may_spin=True, timeout_s=self.timeout_s)
        place = Place(rank=rank, size=self.size, local_rank=rank, local_size=self.size)
        progress = progress_of(range(self.size), self.size, SHARED_MEMORY)
        shared = SharedMemory(memory, rank=rank, size=self.size, semaphores=semaphores, progress=progress)
        return MemoryTeamWorld(place, shared, self.timeout_s)


class MemoryTeamWorld(DerivedWorld):
    """World of the ranks of a team: all collectives pass through shared memory."""

    def __init__(self, place: Place, memory: SharedMemory, timeout_s: float) -> None:
        self.place, self.device, self.timeout_s = place, _CPU, timeout_s
        self._memory, self.step = memory, ExchangeStep()

    def send(self, tensor: Tensor, dst: int) -> None:
        """Refuse: calls that are split use collectives only."""
        raise WorldError(f"rank {self.place.rank} cannot send {list(tensor.shape)} to rank {dst} in a team")

    def recv(self, tensor: Tensor, src: int) -> None:
        """Refuse; see `send`."""
        raise WorldError(f"rank {self.place.rank} cannot receive {list(tensor.shape)} from {src} in a team")

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """Refuse; see `send`."""
        raise WorldError(f"rank {self.place.rank} cannot exchange {send}, {receive} with {dst}, {src}")

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        with self.step.collective():
            self._memory.all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`."""
        self.all_reduce(tensor)
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        check_root(src, self.place.size)
        with self.step.collective():
            self._memory.broadcast(_bytes(tensor), src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        with self.step.collective():
            parts = self._memory.all_gather(_bytes(tensor))
        return [part.view(torch.bool) for part in parts] if tensor.dtype is torch.bool else parts

    def sum_on_main(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """See `World.sum_on_main`."""
        with self.step.collective():
            return self._memory.sum_on_main(tensors)

    def gather_on_main(self, part: Tensor, targets: Sequence[Tensor] | None, most: int) -> None:
        """See `World.gather_on_main`."""
        with self.step.collective():
            self._memory.gather_on_main(part, targets, most)

    def barrier(self) -> None:
        """See `World.barrier`."""
        with self.step.collective():
            self._memory.barrier()

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`."""
        with self.step.collective():
            self._memory.average(tensor)
        return CompletedWork()

    def end_check(self) -> None:
        """See `TeamWorld.end_check`."""
        with self.step.collective(ends=True):
            self._memory.agree("the end of a check", NOTHING)

    def fail(self) -> None:
        """See `TeamWorld.fail`."""
        with self.step.collective(ends=True):
            self._memory.agree("nothing, because it has failed", NOTHING)

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`."""
        return self.all_gather_objects(value)[src]

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`."""
        content = pickle.dumps(value)
        lengths = [int(length) for length in self.all_gather(torch.tensor([len(content)], device=_CPU))]
        padded = bytearray(content.ljust(max(lengths), bytes(1)))
        parts = self.all_gather(torch.frombuffer(padded, dtype=torch.uint8))
        return [
            pickle.loads(part.numpy().tobytes()[:length])  # noqa: S301 - of a process of this run
            for part, length in zip(parts, lengths, strict=True)
        ]

    def close(self) -> None:
        """Do nothing: the memory ends with its processes."""


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
