"""Connects each rank of a group with each other one by a TCP connection of its own, and exchanges messages.

::

    rank 2  ---- asks 0, then 1; then waits for 3      each proves that it has the key of these connections,
    rank 3  ---- asks 0, 1, 2                          see `samestep.ranks.rendezvous.authentication`

The key is derived from the job's secret and a random number of rank 0. With a store that has no secret, such
as that of torchrun, the random number alone is the key: as protected as the group that carried it. Later
messages are neither encrypted nor signed, as Gloo's are not.

Gloo hands each message from thread to thread, on both sides: hundreds of microseconds where a rank has one
core. Here the thread that needs a message writes to the sockets, and sleeps in the kernel until the answers
are there.
"""

import secrets
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from torch.distributed.distributed_c10d import _get_default_store

from samestep.base import env
from samestep.base.machine.interfaces import addresses_here, interfaces
from samestep.base.place import Place
from samestep.ranks.rendezvous.authentication import Callers, Server, connect, derived
from samestep.ranks.rendezvous.gloo_interface import IFNAME, own_address
from samestep.ranks.rendezvous.network_store import base_of
from samestep.ranks.world.protocol import World

PATIENCE_S = 20.0
"""Seconds that the ranks have for all connections; they are on their way at the same time. A guess."""
_NONCE = 32  # bytes of the random number of rank 0
_PURPOSE, _PURPOSE_OF_MAIN = "direct connections", "connections to rank 0"


class NotConnected(Exception):  # noqa: N818 - names the state
    """A rank has no connection to another one; the message has the reason."""


def connect_ranks(world: World) -> dict[int, socket.socket]:
    """Return this rank's connection to each other rank, by its number; all ranks call this.

    They use the network that Gloo uses, and send small messages at once.

    Raises:
        NotConnected: two ranks could not be connected; on all ranks, with the same reason.
    """
    place = world.place
    return _connected(world, _key(world, _PURPOSE), range(place.rank), range(place.rank + 1, place.size))


def connect_to_main(world: World) -> tuple[dict[int, socket.socket], bytes]:
    """Return rank 0's connection to each other rank, or that of this rank to rank 0; all ranks call this.

    Returns:
        the connections by rank, and their key, with which the ranks can prove what they send.

    Raises:
        NotConnected: see `connect_ranks`.
    """
    key, size = _key(world, _PURPOSE_OF_MAIN), world.place.size
    below, above = (range(0), range(1, size)) if world.place.is_main else (range(1), range(0))
    return _connected(world, key, below, above), key


def _connected(world: World, key: bytes, below: range, above: range) -> dict[int, socket.socket]:
    """Connect this rank to those below it, which it asks, and to those above it, which ask."""
    with ExitStack() as undo:
        callers = Callers()
        undo.callback(callers.close)
        address, port = _served(undo, key, callers)
        addresses = world.all_gather_objects((address, port))
        connections: dict[int, socket.socket] = {}
        problem = "" if all(address for address, _ in addresses) else "a rank has no address"
        try:
            if not problem:
                _connect(world.place, addresses, key, callers, connections, (below, above))
        except OSError as error:
            problem = f"rank {world.place.rank} cannot connect: {error}"
        # No rank sends a message of its own before this, so none can arrive behind the handshake.
        problems = [text for text in world.all_gather_objects(problem) if text]
    if problems:
        for connection in connections.values():
            connection.close()
        raise NotConnected(problems[0])
    return connections


def _key(world: World, purpose: str) -> bytes:
    nonce = world.broadcast_object(secrets.token_bytes(_NONCE))
    store = base_of(_get_default_store())
    return derived(nonce, purpose) if store is None else store.key_for(purpose, nonce.hex())


def _served(undo: ExitStack, key: bytes, callers: Callers) -> tuple[str, int]:
    """Let `callers` receive connections; return their address, empty if this rank has none."""
    address = _address()
    if not address:
        return "", 0
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:  # the name of this host resolves to an address that it does not have
        return "", 0
    server = Server(listener, key, callers, name="samestep-connections")
    undo.callback(server.close)
    return address, server.port


def _address() -> str:
    """Return the address of the interface that Gloo uses."""
    named = env.snapshot().get(IFNAME, "").partition(",")[0]
    if not named:
        return own_address() or ""
    among = [interface for interface in interfaces(addresses_here()) if interface.name == named]
    return next((address for interface in among for address in interface.addresses), "")


def _connect(
    place: Place,
    addresses: list[tuple[str, int]],
    key: bytes,
    callers: Callers,
    connections: dict[int, socket.socket],
    peers: tuple[range, range],
) -> None:
    """Connect to the peers below this rank, and then wait for those above it."""
    below, above = peers
    for peer in below:
        connection = connect(*addresses[peer], key, timeout_s=PATIENCE_S)
        connections[peer] = connection.plain
        connection.ask(str(place.rank).encode(), timeout_s=PATIENCE_S)
    for peer in above:
        connections[peer] = callers.taken(str(peer).encode(), limit_s=PATIENCE_S)


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
                message = _Pending(peer, connection, receives[peer], checked)
                message.begin(sends[peer])
                if message.events:
                    pending[connection.fileno()] = message
            self._await(pending, check)
        except BaseException:
            self.end()  # a message may be sent or read in part
            raise

    def _await(self, pending: dict[int, "_Pending"], check: Callable[[memoryview], None]) -> None:
        poll = select.poll()
        for file, message in pending.items():
            poll.register(file, message.events)
        while pending:
            ready = poll.poll(1000 * self._timeout_s)
            if not ready:
                late = next(iter(pending.values())).peer
                raise TimeoutError(f"the connection to rank {late} timed out after {self._timeout_s:g} s")
            for file, _ in ready:
                message = pending[file]
                before = message.events
                message.go_on(check)
                if not message.events:
                    poll.unregister(file)
                    del pending[file]
                elif message.events != before:
                    poll.modify(file, message.events)

    def end(self) -> None:
        """End the connections, which wakes a thread that waits, here and on the other ranks."""
        for connection in self._sockets.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets.values():
            connection.close()


def flags_before(parts: int) -> int:
    """Return the flags to send a part of a message with, before so many others.

    The kernel waits for these, to send few packets, and sends no SIGPIPE, which may end the script's process.
    """
    quiet: int = getattr(socket, "MSG_NOSIGNAL", 0)
    more: int = getattr(socket, "MSG_MORE", 0)
    return quiet | more if parts else quiet


class _Pending:
    """An exchange with one other rank that is under way."""

    def __init__(self, peer: int, connection: socket.socket, into: memoryview, checked: int) -> None:
        self.peer, self._connection = peer, connection
        self._into, self._at, self._checked = into, 0, checked
        self._unsent: list[memoryview] = []

    @property
    def events(self) -> int:
        """The events to poll the connection for; 0 once the exchange is over."""
        receives = select.POLLIN if self._at < self._into.nbytes else 0
        return receives | (select.POLLOUT if self._unsent else 0)

    def begin(self, parts: Sequence[memoryview]) -> None:
        """Send what the kernel accepts at once."""
        self._unsent = [part for part in parts if part.nbytes]  # the last one must send the others
        try:
            self._send()
        except OSError as error:
            raise self._broken() from error

    def _send(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                part = self._unsent[0]
                # Not `sendmsg`, which audit hooks take for a message of the script.
                sent = self._connection.send(part, flags_before(len(self._unsent) - 1))
                self._unsent[:1] = [part[sent:]] if sent < part.nbytes else []

    def go_on(self, check: Callable[[memoryview], None]) -> None:
        """Send and receive what is possible now."""
        try:
            self._send()
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
