"""Authenticates two processes that share a job's secret, and every message between them.

::

    client                                      server
      greeting, nonce C         ---->
                                <----           nonce S, HMAC(secret, "server", C, S)
      HMAC(secret, "client", C, S) ---->

Both nonces are fresh, so that a replayed handshake proves nothing. Every later message carries an HMAC of its
number and its text, with a key that only this connection has: a replayed message proves nothing either.
Messages are not encrypted.

A server serves its connections from one thread, and sends no data to a peer without the secret. A connection
has a few seconds for the whole handshake, however slowly it sends. At most 64 connections are in their
handshake at a time: the oldest of them is closed for the next, since an honest handshake takes milliseconds.
"""

import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Protocol

GREETING = b"samestep1\n"
_NONCE = 32  # bytes
_PROOF = 32  # bytes of an HMAC-SHA256
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_CHUNK = 1 << 16  # maximum bytes of one call of send or recv
LONGEST = 64 * 1024 * 1024
"""Maximum bytes of one message: a guess, far above what ranks post."""


class AuthenticationError(ConnectionError):
    """Error of a connection whose other end lacks the job's secret or uses another protocol."""


def derived(secret: bytes, *labels: str) -> bytes:
    """Return the key of a job's secret for one purpose, which `labels` name."""
    return _mac(secret, "\0".join(labels).encode())


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


class Channel:
    """Codec of the messages of one authenticated connection, with a key for each direction."""

    def __init__(self, sends: bytes, receives: bytes, *, longest: int = LONGEST) -> None:
        self._sends, self._receives, self._longest = sends, receives, longest
        self._sent = self._received = 0
        self._buffer = bytearray()

    def sealed(self, message: bytes) -> bytes:
        """Return a message with its length and HMAC, as it is sent."""
        proof = _mac(self._sends, _NUMBER.pack(self._sent), message)
        self._sent += 1
        return _LENGTH.pack(len(message)) + proof + message

    def opened(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that these received bytes complete.

        Raises:
            AuthenticationError: a message is too long, or its HMAC is wrong.
        """
        self._buffer += data
        head = _LENGTH.size + _PROOF
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._longest:
                raise AuthenticationError(f"a message of {length} bytes")
            if len(self._buffer) < head + length:
                return
            proof = bytes(self._buffer[_LENGTH.size : head])
            message = bytes(self._buffer[head : head + length])
            del self._buffer[: head + length]
            expected = _mac(self._receives, _NUMBER.pack(self._received), message)
            if not hmac.compare_digest(proof, expected):
                raise AuthenticationError("a message with a wrong HMAC")
            self._received += 1
            yield message


class ServerSide:
    """Server's side of a handshake, as a pure state machine: bytes in, bytes out."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._buffer = bytearray()
        self._nonces = b""
        self.channel: Channel | None = None  # set once the client has proved that it has the secret

    def fed(self, data: bytes) -> bytes:
        """Process received bytes; return the bytes to send.

        Raises:
            AuthenticationError: the client cannot prove that it has the secret.
        """
        self._buffer += data
        if not self._nonces:
            begin = bytes(self._buffer[: len(GREETING)])
            if not GREETING.startswith(begin):
                raise AuthenticationError("another protocol")
            end = len(GREETING) + _NONCE
            if len(self._buffer) < end:
                return b""
            nonce = secrets.token_bytes(_NONCE)
            self._nonces = bytes(self._buffer[len(GREETING) : end]) + nonce
            del self._buffer[:end]
            return nonce + _mac(self._key, b"server", self._nonces)
        if len(self._buffer) < _PROOF:
            return b""
        proof, rest = bytes(self._buffer[:_PROOF]), bytes(self._buffer[_PROOF:])
        if rest or not hmac.compare_digest(proof, _mac(self._key, b"client", self._nonces)):
            raise AuthenticationError("a wrong proof")
        to_client = _mac(self._key, b"to client", self._nonces)
        self.channel = Channel(to_client, _mac(self._key, b"to server", self._nonces))
        return self.channel.sealed(b"")


class ClientSide:
    """Client's side of a handshake; `key` is that of the job for this purpose."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE)

    @property
    def greeting(self) -> bytes:
        """First bytes to send."""
        return GREETING + self._nonce

    answer_bytes = _NONCE + _PROOF
    """Length of the server's answer."""

    def proved(self, answer: bytes) -> tuple[bytes, Channel]:
        """Return this side's proof, and the channel of the messages after the server's answer.

        Raises:
            AuthenticationError: the server does not have the secret.
        """
        nonces = self._nonce + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], _mac(self._key, b"server", nonces)):
            raise AuthenticationError("the server does not have this job's secret")
        to_server = _mac(self._key, b"to server", nonces)
        channel = Channel(to_server, _mac(self._key, b"to client", nonces))
        return _mac(self._key, b"client", nonces), channel


class Connection:
    """Authenticated connection of this process to a server; one thread at a time uses it."""

    def __init__(self, peer: socket.socket, channel: Channel) -> None:
        self._socket, self._channel = peer, channel
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process made the connection, instead of inheriting it by a fork."""
        return self._pid == os.getpid()

    @property
    def plain(self) -> socket.socket:
        """Socket of the connection, for bytes that need no proof."""
        return self._socket

    def ask(self, message: bytes, *, timeout_s: float) -> bytes:
        """Send a message of at most `LONGEST` bytes and return the answer, both within `timeout_s`.

        Raises:
            OSError: the connection broke, or no answer arrived in time.
        """
        deadline = monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        self._socket.sendall(self._channel.sealed(message))
        return self.answer(deadline)

    def answer(self, deadline: float) -> bytes:
        """Return the next message; see `ask`."""
        while True:
            _limit(self._socket, deadline)
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("the other end has closed the connection")
            for message in self._channel.opened(data):
                return message

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()


def connect(address: str, port: int, key: bytes, *, timeout_s: float) -> Connection:
    """Return a connection both of whose ends have proved that they have the secret.

    The server proves it before anything else is sent. `timeout_s` is for the whole handshake, however slowly
    the other end sends.

    Raises:
        AuthenticationError: the other end cannot prove that it has the secret.
        OSError: no process answers at that address in time.
    """
    deadline = monotonic() + timeout_s
    peer = socket.create_connection((address, port), timeout=timeout_s)
    try:
        if peer.getsockname() == peer.getpeername():
            raise ConnectionError("no server has this port: the connection came back to itself")
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = ClientSide(key)
        _limit(peer, deadline)
        peer.sendall(client.greeting)
        proof, channel = client.proved(_exactly(peer, client.answer_bytes, deadline))
        peer.sendall(proof)
        connection = Connection(peer, channel)
        if connection.answer(deadline):
            raise AuthenticationError("another protocol")
    except BaseException:
        peer.close()
        raise
    return connection


def _exactly(peer: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _limit(peer, deadline)
        more = peer.recv(count - len(data))
        if not more:
            raise ConnectionError("the other end has closed the connection")
        data += more
    return data


def _limit(peer: socket.socket, deadline: float) -> None:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    peer.settimeout(left)


HANDSHAKE_S = 2.0
"""Maximum seconds of a handshake: a guess, far above two messages each way."""
BACKLOG = 1024
"""Connections that the system keeps until a server accepts them: those of all ranks of a large job."""
_AT_ONCE = (
    64  # maximum connections in their handshake at a time: a guess, so that strangers hold few descriptors
)
_LARGEST_BACKLOG = 256 * 1024 * 1024  # maximum bytes that wait to be sent to one peer: four messages
_JOIN_S = 5.0  # seconds to wait for the server's thread at its end: a guess
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
            self._thread.join(_JOIN_S)

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
        self._connections: dict[bytes, tuple[socket.socket, Channel]] = {}
        self._changed = threading.Condition()

    def received(self, peer: Peer, message: bytes) -> None:
        """See `Service.received`; the server closes its own descriptor of the connection."""
        assert peer.channel is not None
        with self._changed:
            if message not in self._connections:
                self._connections[message] = peer.connection.dup(), peer.channel
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
            if not self._changed.wait_for(lambda: message in self._connections, limit_s):
                raise TimeoutError("timed out")
            connection, channel = self._connections.pop(message)
        connection.settimeout(limit_s)
        connection.sendall(channel.sealed(b""))
        return connection

    def close(self) -> None:
        """Close the connections that were not taken."""
        for connection, _ in self._connections.values():
            connection.close()
        self._connections.clear()


def _forget_in_child() -> None:
    for server in list(_servers):
        server.forget_in_child()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
