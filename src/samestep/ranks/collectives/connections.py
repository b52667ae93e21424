"""Exchanges small messages between all pairs of ranks by TCP, from the thread that needs them.

Gloo hands each message from thread to thread, on both sides: hundreds of microseconds where a rank has one
core. Here the calling thread writes to the sockets and sleeps in the kernel until the answers are there.

The messages are neither encrypted nor signed, as Gloo's are not; the connections are authenticated when they
are made, by `samestep.ranks.rendezvous.peer_connections`.
"""

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress


class Connections:
    """One rank's connections to all other ranks; one thread at a time uses them.

    Args:
        rank: this rank.
        sockets: the connection to each other rank; this object owns them.
        timeout_s: seconds that a rank waits for another one.
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
            sent = self._connection.sendmsg(parts)
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
