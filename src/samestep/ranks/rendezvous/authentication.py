"""Authenticates two processes that share a job's secret, and every message between them.

::

    client                                      server
      greeting, nonce C         ---->
                                <----           nonce S, HMAC(secret, "server", C, S)
      HMAC(secret, "client", C, S) ---->

Both nonces are fresh, so that a replayed handshake proves nothing. Every later message carries an HMAC of its
number and its text, with a key that only this connection has: a replayed message proves nothing either.
Messages are not encrypted.
"""

import hmac
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

GREETING = b"samestep1\n"
_NONCE = 32
_PROOF = 32
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_CHUNK = 1 << 16
LONGEST = 64 * 1024 * 1024
"""Maximum bytes of one message."""


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
