"""Makes a team of the ranks that a launcher has started: rank 0 runs the script, the others are helpers.

On one host's CPUs they share memory, as helpers do that the main rank has started. Otherwise each helper has
a connection to the main rank. A message is a header with a proof that it is of this job, followed by its
tensors, of which a helper gets the rows that it needs::

    header: message, forms of its tensors     to each helper
    tensors on the CPU                        to each helper; large ones by a broadcast
    tensors on a device                       by a broadcast, or their rows to each helper

The connections also compare the calls of collectives before the ranks enter them; see `agree`.
"""

import os
import pickle
import select
import socket
import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from samestep.autopilot.helpers.messages import KeptMessages, Line, LineOfHelper, Rows, RowsOfTensor, is_plain
from samestep.autopilot.helpers.pickling import pickled, unpickled
from samestep.autopilot.helpers.team import ExchangeStep, TeamMemory, TeamWorld
from samestep.autopilot.split.slice_context import OtherRankFailedError
from samestep.base.errors import PeerLost
from samestep.ranks.collectives.call_signature import NOTHING, SIGNATURE_BYTES, same_call, signature
from samestep.ranks.collectives.direct import low_latency
from samestep.ranks.collectives.peer_connections import connect_to_main, flags_before
from samestep.ranks.collectives.semaphores import own_process
from samestep.ranks.rendezvous.authentication import Channel, derived
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World

_LONGEST = 1 << 31
"""Bytes of the longest header: a guess, far above any, so a longer one is an error."""
_LENGTH = struct.Struct("!I")
_PROOF = 32  # bytes of an HMAC-SHA256
_SLOTS = 32
"""Messages that are kept to be repeated: a guess."""
_LARGE = 1 << 20
"""Bytes from which a tensor for several helpers goes by a broadcast: a guess."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first question to the other host, and between two, and how many may have no
answer: guesses. A host that is gone is noticed in 25 seconds; the system's own values take hours."""
_GRACE_S = 0.5
"""Seconds that a helper has to read the last message, after the main rank has ended."""
_SAME, _OTHER = b"\1", b"\0"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a tensor in a message, and how it is sent."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Of a dense tensor."""
    device: str
    requires_grad: bool
    rows: RowsOfTensor | None = None
    """The rows, of which each helper gets its own; None if it gets all."""
    shares: Sequence[range] = ()
    """The samples of each rank."""

    @property
    def is_broadcast(self) -> bool:
        """Whether all ranks take part when the tensor is sent."""
        return self.rows is None and (self.device != "cpu" or self._nbytes >= _LARGE)

    @property
    def _nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def empty(self, device: torch.device) -> Tensor:
        """Return a tensor of this form, on the CPU or on this rank's device."""
        where = device if self.device != "cpu" else torch.device("cpu")
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=where)

    def rows_of(self, rank: int, tensor: Tensor) -> Tensor:
        """Return the rows of a rank; they share the tensor's memory."""
        assert self.rows is not None
        return tensor.narrow(*self.rows.of(self.shares[rank]))


def _form_of(tensor: Tensor, rows: Rows | None) -> Form:
    like = torch.empty_like(tensor, device="meta")  # dense, with the tensor's order of dimensions
    rows_of_tensor = None if rows is None else rows.of_tensors.get(id(tensor))
    return Form(
        *(tensor.dtype, tuple(like.shape), tuple(like.stride()), tensor.device.type, tensor.requires_grad),
        rows=rows_of_tensor,
        shares=() if rows is None or rows_of_tensor is None else rows.shares,
    )


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor's values as bytes in the order of its form."""
    values = tensor.detach().resolve_conj().resolve_neg()
    like = torch.empty_like(values, device="meta")
    if values.stride() != like.stride():
        values = torch.empty_like(values).copy_(values)
    return _flat(values)


def _flat(dense: Tensor) -> Tensor:
    """Return the bytes of a dense tensor, in its memory."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _memory(flat: Tensor) -> memoryview:
    values: Any = flat.numpy()
    return memoryview(values)


class _Connection:
    """One side of the connection between the main rank and a helper."""

    def __init__(self, rank: int, connection: socket.socket, key: bytes, *, of_main: bool) -> None:
        self.rank, self.socket = rank, connection
        ways = derived(key, "to helper", str(rank)), derived(key, "to main rank", str(rank))
        self._channel = Channel(*(ways if of_main else ways[::-1]), longest=_LONGEST)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, header: bytes, parts: Sequence[memoryview] = ()) -> None:
        """Send a header with a proof, and plain bytes."""
        self.send_plain([memoryview(self._channel.sealed(header)), *parts])

    def send_plain(self, parts: Sequence[memoryview]) -> None:
        """Send bytes without a proof."""
        with self._explained():
            filled = [part for part in parts if part.nbytes]  # the last one must send the others
            for number, part in enumerate(filled, 1):
                self.socket.sendall(part, flags_before(len(filled) - number))

    def receive(self) -> bytes:
        """Return the next header."""
        head = self.receive_plain(_LENGTH.size)
        (length,) = _LENGTH.unpack(head)
        with self._explained():
            if length > _LONGEST:
                raise ConnectionError(f"a header of {length} bytes")
            (header,) = self._channel.opened(bytes(head) + self.receive_plain(_PROOF + length))
        return header

    def receive_plain(self, count: int) -> bytearray:
        """Return so many bytes."""
        received = bytearray(count)
        self.fill(memoryview(received))
        return received

    def fill(self, into: memoryview) -> None:
        """Fill memory by received bytes."""
        with self._explained():
            while into.nbytes:
                count = self.socket.recv_into(into)
                if not count:
                    raise ConnectionError("it has closed the connection")
                into = into[count:]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PeerLost(f"rank {self.rank} is lost: {error}") from error

    def shut_down(self) -> None:
        """End the connection, which both sides see at once."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection, and close it here."""
        self.shut_down()
        self.socket.close()


class NetworkMainLine:
    """The main rank's side: a connection to each helper.

    Args:
        world: the ranks, for broadcasts.
        sockets: the connection to each helper.
        key: the key of these connections.
        timeout_s: seconds that a helper has to answer.
    """

    def __init__(
        self, world: World, sockets: Mapping[int, socket.socket], key: bytes, *, timeout_s: float
    ) -> None:
        self._world = world
        for connection in sockets.values():
            connection.settimeout(None if timeout_s == float("inf") else timeout_s)
        self._helpers = [
            _Connection(rank, connection, key, of_main=True) for rank, connection in sorted(sockets.items())
        ]
        self._kept: KeptMessages[Sequence[Form]] = KeptMessages(_SLOTS)
        # A process that the script forks would keep them open.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        for helper in self._helpers:
            helper.socket.close()

    def send(self, message: Any, *, key: Hashable = None, rows: Rows | None = None) -> None:
        """Send a message to all helpers; see `MainLine.send`."""
        tensors: list[Tensor] = []
        places: dict[int, int] = {}

        def refer(tensor: Tensor) -> int | None:
            if not is_plain(tensor):
                return None
            if id(tensor) not in places:
                places[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return places[id(tensor)]

        content = pickled(message, refer)
        forms = [_form_of(tensor, rows) for tensor in tensors]
        slot = -1 if key is None else self._kept.keep(key, forms)
        self._send(pickle.dumps((slot, content, forms)), tensors, forms)

    def repeat(self, key: Hashable, tensors: Sequence[Tensor], call: int, released: Sequence[int]) -> bool:
        """Send a message again; see `MainLine.repeat`."""
        known = self._kept.find(key)
        if known is None or len(known[1]) != len(tensors):
            return False
        slot, forms = known
        self._send(pickle.dumps((slot, call, released)), tensors, forms)
        return True

    def _send(self, header: bytes, tensors: Sequence[Tensor], forms: Sequence[Form]) -> None:
        flat = [
            None if form.rows is not None else _dense(tensor)
            for tensor, form in zip(tensors, forms, strict=True)
        ]
        for helper in self._helpers:
            parts = []
            for tensor, whole, form in zip(tensors, flat, forms, strict=True):
                if form.device != "cpu" or form.is_broadcast:
                    continue
                part = whole if whole is not None else _dense_rows(form, tensor, helper.rank)
                parts.append(_memory(part))
            helper.send(header, parts)
        with _others_alive():
            for tensor, whole, form in zip(tensors, flat, forms, strict=True):
                if form.is_broadcast and whole is not None:
                    self._world.broadcast(whole)
                elif form.device != "cpu":
                    for helper in self._helpers:
                        self._world.send(_dense_rows(form, tensor, helper.rank), helper.rank)

    def collect(self) -> str:
        """Wait until all helpers have answered; see `MainLine.collect`."""
        error = ""
        for helper in self._helpers:
            error = helper.receive().decode(errors="replace") or error
        return error

    def agree(self, call: bytes) -> None:
        """Return if all ranks make the same call, of which each has a signature.

        Raises:
            OtherRankFailedError: they do not; on all ranks.
            PeerLost: a rank is lost.
        """
        calls = [bytes(helper.receive_plain(SIGNATURE_BYTES)) for helper in self._helpers]
        is_same = all(same_call(call, helpers_call) for helpers_call in calls)
        answer = [memoryview(_SAME if is_same else _OTHER)]
        for helper in self._helpers:
            helper.send_plain(answer)
        if not is_same:
            raise OtherRankFailedError("the ranks are not in one collective")

    def close(self) -> None:
        """Close the connections, which ends the helpers."""
        for helper in self._helpers:
            helper.close()


def _dense_rows(form: Form, tensor: Tensor, rank: int) -> Tensor:
    rows = form.rows_of(rank, tensor.detach()).resolve_conj().resolve_neg()
    return _flat(rows.contiguous())


@contextmanager
def _others_alive() -> Iterator[None]:
    """Raise `PeerLost` for the errors of back ends, which have no type of their own."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error)) from error


class NetworkHelperLine:
    """A helper's side: a connection to the main rank, with which this process ends."""

    def __init__(self, world: World, connection: socket.socket, key: bytes) -> None:
        connection.settimeout(None)  # a script may evaluate, or sleep, for hours
        self._world = world
        self._main = _Connection(world.place.rank, connection, key, of_main=False)
        self._kept: dict[int, tuple[Any, Sequence[Form], Sequence[Tensor]]] = {}
        self._is_over = Event()
        args = connection, self._is_over
        self._watch = Thread(target=_end_with, args=args, daemon=True, name="samestep-helper")
        self._watch.start()

    def receive(self) -> Any:
        """Return the next message; its tensors are valid until the next one.

        Raises:
            PeerLost: the main rank has ended.
        """
        slot, *contents = pickle.loads(self._main.receive())  # noqa: S301 - with a proof of the main rank
        content, forms = contents
        if isinstance(content, int):
            message, known, tensors = self._kept[slot]
            self._fill(tensors, known)
            return replace(message, call=content, released=forms)
        tensors = [form.empty(self._world.device) for form in forms]
        self._fill(tensors, forms)
        for tensor, form in zip(tensors, forms, strict=True):
            tensor.requires_grad_(form.requires_grad)
        message = unpickled(content, tensors.__getitem__)
        if slot >= 0:
            self._kept[slot] = message, forms, tensors
        return message

    def _fill(self, tensors: Sequence[Tensor], forms: Sequence[Form]) -> None:
        values = [tensor.detach() for tensor in tensors]
        for tensor, form in zip(values, forms, strict=True):
            if form.device == "cpu" and not form.is_broadcast:
                self._receive(tensor, form, lambda flat: self._main.fill(_memory(flat)))
        with _others_alive():
            for tensor, form in zip(values, forms, strict=True):
                if form.is_broadcast:
                    self._world.broadcast(_flat(tensor))
                elif form.device != "cpu":
                    self._receive(tensor, form, lambda flat: self._world.recv(flat, 0))

    def _receive(self, tensor: Tensor, form: Form, fill: Any) -> None:
        """Fill a tensor, or this rank's rows of it."""
        if form.rows is None:
            fill(_flat(tensor))
            return
        rows = form.rows_of(self._world.place.rank, tensor)
        part = rows if rows.is_contiguous() else torch.empty_like(rows, memory_format=torch.contiguous_format)
        fill(_flat(part))
        if part is not rows:
            rows.copy_(part)

    def answer(self, error: str = "") -> None:
        """Answer that the last message was carried out, or why it was not."""
        self._main.send(error.encode())

    def close(self) -> None:
        """See `LineOfHelper.close`."""
        self._is_over.set()
        self._main.shut_down()
        self._watch.join()
        self._main.close()

    def agree(self, call: bytes) -> None:
        """Return if all ranks make the same call; see `NetworkMainLine.agree`."""
        self._main.send_plain([memoryview(call)])
        if bytes(self._main.receive_plain(1)) != _SAME:
            raise OtherRankFailedError("the ranks are not in one collective")


def _end_with(connection: socket.socket, is_over: Event) -> None:
    """End this process when the main rank has ended, for which it may wait in a collective or on a device."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    if not is_over.wait(_GRACE_S):
        os._exit(0)


T = TypeVar("T")


class NetworkTeamWorld(RelayedWorld):
    """World of a team whose ranks compare their calls before each collective, by their lines."""

    def __init__(self, inner: World, line: NetworkMainLine | NetworkHelperLine) -> None:
        super().__init__(inner)
        self._line, self.step = line, ExchangeStep()

    @contextmanager
    def _together(self, call: str, tensor: Tensor = NOTHING, *, ends: bool = False) -> Iterator[None]:
        """Run the block on all ranks, or raise `OtherRankFailedError` on all of them."""
        with self.step.collective(ends=ends):
            self._line.agree(signature(self.place.rank, call, tensor))
            try:
                yield
            except RuntimeError as error:  # of a back end: there is no other type for it
                raise PeerLost(str(error)) from error

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        with self._together(f"all_reduce({op})", tensor):
            self.inner.all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`."""
        self.all_reduce(tensor)
        return CompletedWork()

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`."""
        with self._together("average", tensor):
            self.inner.average_later(tensor).wait()
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        with self._together(f"broadcast from {src}", tensor):
            self.inner.broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        with self._together("all_gather", tensor):
            return self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        with self._together("barrier"):
            pass

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`."""
        with self._together(f"broadcast_object from {src}"):
            return self.inner.broadcast_object(value, src)

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`."""
        with self._together("all_gather_objects"):
            return self.inner.all_gather_objects(value)

    def end_check(self) -> None:
        """See `TeamWorld.end_check`."""
        with self._together("the end of a check", ends=True):
            pass

    def fail(self) -> None:
        """See `TeamWorld.fail`."""
        with self._together("nothing, because it has failed", ends=True):
            pass


class JoinedTeam:
    """The main rank's team of ranks that a launcher has started; they cannot be started again."""

    def __init__(self, world: TeamWorld, line: Line, *, shares_memory: bool) -> None:
        self.size, self.shares_memory = world.place.size, shares_memory
        self._ranks: tuple[TeamWorld, Line] | None = (world, line)

    def start(self) -> tuple[TeamWorld, Line]:
        """See `Team.start`."""
        if self._ranks is None:
            raise PeerLost("the launcher's workers cannot be started again")
        return self._ranks

    def are_alive(self) -> bool:
        """See `Team.are_alive`; the next exchange with the ranks finds out."""
        return True

    def stop(self) -> None:
        """See `Team.stop`."""
        if self._ranks is not None and isinstance(self._ranks[1], NetworkMainLine):
            self._ranks[1].close()
        self._ranks = None

    def close(self) -> None:
        """See `Team.close`; a team in memory ends with the main rank's process."""
        self.stop()


def main_rank(world: World, *, timeout_s: float, threads: int, may_share_memory: bool = True) -> JoinedTeam:
    """Make the team of all ranks, of which this is the main rank; the others call `helper_rank`."""
    memory = _new_memory(world, timeout_s=timeout_s, threads=threads) if may_share_memory else None
    memory = world.broadcast_object(memory)
    reached = world.all_gather_objects((memory is not None, own_process()))
    if memory is not None and all(is_reached for is_reached, _ in reached):
        in_memory, line = memory.main_rank([process for _, (process, _) in reached[1:]])
        return JoinedTeam(in_memory, line, shares_memory=True)
    if memory is not None:
        memory.close()
    near = low_latency(world)
    sockets, key = connect_to_main(world)
    network_line = NetworkMainLine(near, sockets, key, timeout_s=timeout_s)
    return JoinedTeam(NetworkTeamWorld(near, network_line), network_line, shares_memory=False)


def helper_rank(world: World) -> tuple[TeamWorld, LineOfHelper]:
    """Make the team of all ranks, of which this is a helper; see `main_rank`."""
    memory: TeamMemory | None = world.broadcast_object(None)
    ranks = None
    if memory is not None:
        with suppress(OSError):  # another host, or a container of its own
            ranks = memory.helper(world.place.rank)
    reached = world.all_gather_objects((ranks is not None, own_process()))
    if ranks is not None and all(is_reached for is_reached, _ in reached):
        return ranks
    near = low_latency(world)
    sockets, key = connect_to_main(world)
    line = NetworkHelperLine(near, sockets[0], key)
    return NetworkTeamWorld(near, line), line


def _new_memory(world: World, *, timeout_s: float, threads: int) -> TeamMemory | None:
    """Return memory for the ranks of one host that compute on CPUs; None for others, and without any."""
    if world.device.type != "cpu" or world.place.nodes > 1 or not hasattr(os, "memfd_create"):
        return None
    try:
        return TeamMemory.new(world.place.size, timeout_s=timeout_s, threads=threads)
    except OSError:
        return None
