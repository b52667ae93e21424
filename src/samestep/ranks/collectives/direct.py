"""Collectives of small tensors by direct connections between all ranks.

A tensor that is small, or that two ranks reduce, is sent to all ranks, and each of them reduces all of it:
one latency. A larger one is divided into a chunk per rank, which that rank reduces and sends to all: two
latencies, and the 2(N-1)/N tensors of a ring::

    small     0 <-> 1, 0 <-> 2, 1 <-> 2: whole tensors         each rank has a+b+c
    larger    0 <-> 1, 0 <-> 2, 1 <-> 2: a chunk for each      rank r has the r-th chunk of a+b+c
              0 <-> 1, 0 <-> 2, 1 <-> 2: these chunks          each rank has a+b+c

Sums are in rank order, so all ranks have equal bits. Each call begins with the ranks' call signatures, which
are compared before a tensor is used.

The messages go by TCP, from the thread that needs them. Gloo hands each message from thread to thread, on
both sides: hundreds of microseconds where a rank has one core. Here the calling thread writes to the sockets
and sleeps in the kernel until the answers are there. The messages are neither encrypted nor signed, as Gloo's
are not; `samestep.ranks.rendezvous.peer_connections` authenticates the connections when it makes them.
"""

import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from samestep.ranks.collectives.call_counter import Progress
from samestep.ranks.collectives.call_signature import SIGNATURE_BYTES, check_same_call, signature
from samestep.ranks.collectives.shared_memory import PIECE, bounds, pieces
from samestep.ranks.world.operation import Op, as_contiguous, flattened, put_back, reduce_in_rank_order


class Connections:
    """One rank's connections to all other ranks; one thread at a time uses them.

    This object owns the sockets; a rank waits `timeout_s` for another one.
    """

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        above = [peer for peer in sorted(sockets) if peer > rank]
        order = above + [peer for peer in sorted(sockets) if peer < rank]  # no rank is first for all others
        self._sockets = {peer: sockets[peer] for peer in order}
        for connection in sockets.values():
            connection.settimeout(0.0)

    def exchange(
        self,
        sends: Mapping[int, Sequence[memoryview]],
        receives: Mapping[int, memoryview],
        *,
        checked: int = 0,
        check: Callable[[memoryview], None] = lambda _: None,
    ) -> None:
        """Send to each other rank the parts for it, one after the other, and fill `receives` from each.

        `check` gets the first `checked` bytes of each received message once they are there: before this rank
        waits for the rest, which does not come if the other rank makes another call.

        Raises:
            ConnectionError: another rank has closed its connection, or ended.
            TimeoutError: another rank did not send in time.
        """
        try:
            pending = {}
            for peer, connection in self._sockets.items():
                one = _Pending(peer, connection, receives[peer], checked)
                one.begin(sends[peer])
                if one.events:
                    pending[connection.fileno()] = one
            self._await(pending, check)
        except BaseException:
            self.end()  # a message may be sent or read in part
            raise

    def _await(self, pending: dict[int, "_Pending"], check: Callable[[memoryview], None]) -> None:
        poll = select.poll()
        for file, one in pending.items():
            poll.register(file, one.events)
        while pending:
            ready = poll.poll(1000 * self._timeout_s)
            if not ready:
                late = next(iter(pending.values())).peer
                raise TimeoutError(f"the connection to rank {late} timed out after {self._timeout_s:g} s")
            for file, _ in ready:
                one = pending[file]
                before = one.events
                one.go_on(check)
                if not one.events:
                    poll.unregister(file)
                    del pending[file]
                elif one.events != before:
                    poll.modify(file, one.events)

    def end(self) -> None:
        """End the connections, which wakes a thread that waits, here and on the other ranks."""
        for connection in self._sockets.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets.values():
            connection.close()


class _Pending:
    """An exchange with one other rank that is under way."""

    def __init__(self, peer: int, connection: socket.socket, into: memoryview, checked: int) -> None:
        self.peer, self._connection = peer, connection
        self._into, self._at, self._checked = into, 0, checked
        self._unsent = memoryview(b"")

    @property
    def events(self) -> int:
        """The events to poll the connection for; 0 once the exchange is over."""
        receives = select.POLLIN if self._at < self._into.nbytes else 0
        return receives | (select.POLLOUT if self._unsent else 0)

    def begin(self, parts: Sequence[memoryview]) -> None:
        """Send what the kernel accepts at once."""
        try:
            # Not `sendmsg`, which audit hooks take for a message of the script.
            sent = os.writev(self._connection.fileno(), parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        if sent < sum(part.nbytes for part in parts):
            self._unsent = memoryview(b"".join(parts))[sent:]

    def go_on(self, check: Callable[[memoryview], None]) -> None:
        """Send and receive what is possible now."""
        try:
            if self._unsent:
                with suppress(BlockingIOError):
                    self._unsent = self._unsent[self._connection.send(self._unsent) :]
            if self._at < self._into.nbytes:
                self._receive(check)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._broken() from error

    def _receive(self, check: Callable[[memoryview], None]) -> None:
        got = self._connection.recv_into(self._into[self._at :])
        if not got:
            raise ConnectionError("end of file")
        self._at += got
        if self._checked and self._at >= self._checked:
            check(self._into[: self._checked])
            self._checked = 0

    def _broken(self) -> ConnectionError:
        return ConnectionError(f"rank {self.peer} has closed the connection")


SMALL = 1 << 16
"""Bytes, of the tensors that a rank receives together, up to which each rank reduces all of them."""
_NOTHING = torch.empty(0, device="cpu")


class DirectCollectives:
    """One rank's collectives by direct connections, for tensors in the host's memory.

    An error of a connection is a `RuntimeError`, as with torch's back ends.
    """

    def __init__(self, connections: Connections, *, rank: int, size: int, progress: Progress) -> None:
        self._connections, self._progress = connections, progress
        self._rank, self._size = rank, size
        self._others = [one for one in range(size) if one != rank]
        self._inbox = torch.empty(size, SIGNATURE_BYTES + PIECE, dtype=torch.uint8, device="cpu")
        """The last message of each rank, behind its signature."""
        self._views = [memoryview(one.numpy()) for one in self._inbox]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes and dtypes, in rank order."""
        with self._progress_of("all_gather"):
            own, call = as_contiguous(tensor), signature(self._rank, "all_gather", tensor)
            gathered = [torch.empty_like(own) for _ in range(self._size)]
            flat = [one.view(-1) for one in gathered]
            for part in _pieces_to_send(own):
                received = self._received([own.view(-1)[part]] * self._size, call)
                for one, piece in zip(flat, received, strict=True):
                    one[part] = piece
            return gathered

    def barrier(self) -> None:
        """Return once every rank has called this."""
        with self._progress_of("barrier"):
            self._received([_NOTHING] * self._size, signature(self._rank, "barrier", _NOTHING))

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place, to equal bits on every rank."""
        with self._progress_of("all_reduce"):
            flat, call = flattened(tensor), signature(self._rank, f"all_reduce({op})", tensor)
            for part in _pieces_to_send(flat):
                self._reduce(flat[part], op, call)
            put_back(flat, tensor)

    def _reduce(self, flat: Tensor, op: Op, call: bytes) -> None:
        if self._size == 2 or flat.nbytes * (self._size - 1) <= SMALL:
            reduce_in_rank_order(op, self._received([flat] * self._size, call), flat)
            return
        edges = bounds(flat.numel(), self._size)
        chunks = [flat[edges[rank] : edges[rank + 1]] for rank in range(self._size)]
        own = chunks[self._rank]
        reduce_in_rank_order(op, self._received(chunks, call), own)
        self._copy_chunks(own, chunks)

    def _progress_of(self, op: str) -> Progress:
        self._progress.enter(op)
        return self._progress

    def _received(self, sends: Sequence[Tensor], call: bytes) -> list[Tensor]:
        """Send a flat tensor to each rank, behind the call's signature, and return those of all ranks.

        They have the size of the one at this rank's place, and are valid until the next call.
        """
        own = sends[self._rank]
        end = SIGNATURE_BYTES + own.nbytes
        self._exchange(
            {rank: [memoryview(call), _bytes(sends[rank])] for rank in self._others},
            {rank: self._views[rank][:end] for rank in self._others},
            checked=SIGNATURE_BYTES,
            check=lambda other: check_same_call(call, bytes(other)),
        )
        return [
            own if rank == self._rank else self._inbox[rank, SIGNATURE_BYTES:end].view(own.dtype)
            for rank in range(self._size)
        ]

    def _copy_chunks(self, own: Tensor, chunks: Sequence[Tensor]) -> None:
        """Send this rank's chunk to all ranks, and receive theirs."""
        sent = [_bytes(own)]
        self._exchange(
            dict.fromkeys(self._others, sent), {rank: _bytes(chunks[rank]) for rank in self._others}
        )

    def _exchange(self, *messages: Mapping[int, Any], **checks: Any) -> None:
        try:
            self._connections.exchange(*messages, **checks)
        except OSError as error:
            raise RuntimeError(str(error)) from error


def _pieces_to_send(tensor: Tensor) -> list[slice]:
    """Return the elements of each piece; one without any of an empty tensor, whose call is compared too."""
    return pieces(tensor) or [slice(0, 0)]


def _bytes(flat: Tensor) -> memoryview:
    view: Any = flat.view(torch.uint8).numpy()
    return memoryview(view)
