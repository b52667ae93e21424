"""Serves authenticated connections from one thread; a peer without the secret gets no data.

A connection has a few seconds for the whole handshake, however slowly it sends. At most 64 connections are
in their handshake at a time: the oldest of them is closed for the next, since an honest handshake takes
milliseconds.
"""

import os
import selectors
import socket
import threading
import weakref
from contextlib import suppress
from time import monotonic
from typing import Protocol

from samestep.ranks.rendezvous.authentication import Channel, ServerSide

HANDSHAKE_S = 2.0
"""Maximum seconds of a handshake."""
_AT_ONCE = 64  # maximum connections in their handshake at a time
_CHUNK = 1 << 16
_LARGEST_BACKLOG = 256 * 1024 * 1024  # maximum bytes that wait to be sent to one peer
_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()


class Service(Protocol):
    """Answers the messages of authenticated peers; called from the server's thread only."""

    def received(self, peer: "Peer", message: bytes) -> None:
        """Process a message of a peer; answers go through `Peer.send`."""

    def gone(self, peer: "Peer") -> None:
        """Remove a peer whose connection has ended."""

    def passed(self, now: float) -> float | None:
        """Run the actions that are due; return the time of the next call, on `time.monotonic`'s clock."""


class Peer:
    """Server's end of one connection.

    The socket is in non-blocking mode.
    """

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self.connection = connection
        self.handshake = ServerSide(key)
        self.deadline = monotonic() + HANDSHAKE_S
        self.out = bytearray()

    @property
    def channel(self) -> Channel | None:
        """Channel of the messages; None until the peer has proved that it has the secret."""
        return self.handshake.channel

    def send(self, message: bytes) -> None:
        """Queue a message, which is sent once the socket is writable."""
        assert self.channel is not None
        self.out += self.channel.sealed(message)


class Server:
    """Serves a service on a listening socket, until it is closed.

    It owns `listener` from then on.
    """

    def __init__(
        self, listener: socket.socket, key: bytes, service: Service, *, name: str = "samestep-server"
    ) -> None:
        self._listener, self._key, self._service = listener, key, service
        self._selector = selectors.DefaultSelector()
        self._awake, self._wake = socket.socketpair()
        self._peers: dict[int, Peer] = {}
        self._shaking: dict[int, Peer] = {}  # peers whose handshake is not complete, the oldest first
        self._closing = False
        self._pid = os.getpid()
        listener.settimeout(0.0)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        _servers.add(self)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return int(self._listener.getsockname()[1])

    @property
    def is_closed(self) -> bool:
        """Whether the server has stopped, or belongs to the process that this one was forked from."""
        return self._closing

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._closing or self._pid != os.getpid():
            return
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def forget_in_child(self) -> None:
        """Close all descriptors in a forked process, so that the parent's close ends the connections."""
        self._closing = True
        for held in (self._listener, self._awake, self._wake, *(p.connection for p in self._peers.values())):
            held.close()
        self._selector.close()

    def _serve(self) -> None:
        due: float | None = None
        try:
            while not self._closing:
                # Connections are in order of arrival, and so are their deadlines.
                first = next(iter(self._shaking.values()), None)
                ends = [end for end in (due, None if first is None else first.deadline) if end is not None]
                for key, _ in self._selector.select(max(0.0, min(ends) - monotonic()) if ends else None):
                    self._ready(key)
                now = monotonic()
                for peer in list(self._shaking.values()):
                    if peer.deadline > now:
                        break
                    self._end(peer)
                due = self._service.passed(now)
                for peer in [peer for peer in self._peers.values() if peer.out]:
                    self._flush(peer)
        finally:
            if self._pid == os.getpid():
                self._release()

    def _ready(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif isinstance(key.data, Peer):
            self._read(key.data)
        else:
            with suppress(OSError):
                self._awake.recv(64)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # too many open files, or it has gone again
                self._make_room(1)
                return
            connection.settimeout(0.0)
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._make_room(_AT_ONCE)
            peer = Peer(connection, self._key)
            self._peers[connection.fileno()] = self._shaking[connection.fileno()] = peer
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _make_room(self, at_most: int) -> None:
        """Close the oldest connections in their handshake until fewer than `at_most` are left."""
        while self._shaking and len(self._shaking) >= at_most:
            self._end(next(iter(self._shaking.values())))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(_CHUNK)
            if not data:
                raise ConnectionError("closed")
            if (channel := peer.channel) is None:
                peer.out += peer.handshake.fed(data)
                if peer.channel is not None:
                    del self._shaking[peer.connection.fileno()]
            else:
                for message in channel.opened(data):
                    self._service.received(peer, message)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # the connection broke, or its bytes are not of this protocol
            self._end(peer)

    def _flush(self, peer: Peer) -> None:
        if peer.connection.fileno() < 0:
            return
        try:
            while peer.out and (sent := peer.connection.send(peer.out[:_CHUNK])):
                del peer.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._end(peer)
            return
        if len(peer.out) > _LARGEST_BACKLOG:
            self._end(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        if self._selector.get_key(peer.connection).events != events:
            self._selector.modify(peer.connection, events, peer)

    def _end(self, peer: Peer) -> None:
        if self._peers.pop(peer.connection.fileno(), None) is None:
            return
        self._shaking.pop(peer.connection.fileno(), None)
        self._selector.unregister(peer.connection)
        peer.connection.close()
        self._service.gone(peer)

    def _release(self) -> None:
        for peer in list(self._peers.values()):
            with suppress(OSError):
                self._flush(peer)
            self._end(peer)
        self._listener.close()
        self._selector.close()
        self._awake.close()
        self._wake.close()


class Callers:
    """Service that keeps authenticated connections until each is taken by its first message."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[socket.socket, Channel]] = {}
        self._changed = threading.Condition()

    def received(self, peer: Peer, message: bytes) -> None:
        """See `Service.received`; the server closes its own descriptor of the connection."""
        assert peer.channel is not None
        with self._changed:
            if message not in self._found:
                self._found[message] = peer.connection.dup(), peer.channel
                self._changed.notify_all()
        raise ConnectionError("handed over")

    def gone(self, peer: Peer) -> None:
        """See `Service.gone`."""

    def passed(self, now: float) -> None:
        """See `Service.passed`."""

    def taken(self, message: bytes, *, limit_s: float) -> socket.socket:
        """Return the connection of the peer whose first message is `message`, after answering it.

        Raises:
            TimeoutError: no peer sent this message in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: message in self._found, limit_s):
                raise TimeoutError("timed out")
            connection, channel = self._found.pop(message)
        connection.settimeout(limit_s)
        connection.sendall(channel.sealed(b""))
        return connection

    def close(self) -> None:
        """Close the connections that were not taken."""
        for connection, _ in self._found.values():
            connection.close()
        self._found.clear()


def _forget_in_child() -> None:
    for server in list(_servers):
        server.forget_in_child()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
