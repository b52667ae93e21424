"""Connects to a server that must prove that it has the job's secret, before anything else is sent."""

import os
import socket
from contextlib import suppress
from time import monotonic

from samestep.world.authentication import AuthenticationError, Channel, ClientSide

_CHUNK = 1 << 16


class Connection:
    """An authenticated connection of this process; one thread at a time uses it.

    Args:
        peer: its socket.
        channel: its messages.
    """

    def __init__(self, peer: socket.socket, channel: Channel) -> None:
        self._socket, self._channel = peer, channel
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process has made it, and did not inherit it."""
        return self._pid == os.getpid()

    @property
    def plain(self) -> socket.socket:
        """The connection itself, for bytes that need no proof."""
        return self._socket

    def ask(self, message: bytes, *, timeout_s: float) -> bytes:
        """Send a message and return the answer.

        Args:
            message: at most `authentication.LONGEST` bytes.
            timeout_s: how long both may take.

        Raises:
            OSError: the connection broke, or there was no answer in time.
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
        """Close it."""
        with suppress(OSError):
            self._socket.close()


def connect(address: str, port: int, key: bytes, *, timeout_s: float) -> Connection:
    """Return a connection whose both ends have proved that they have the secret.

    Args:
        address: of the server.
        port: of the server.
        key: of the job, for this purpose.
        timeout_s: for all of it, however slowly the other end sends.

    Raises:
        AuthenticationError: the other end has no proof.
        OSError: nothing answers there in time.
    """
    deadline = monotonic() + timeout_s
    peer = socket.create_connection((address, port), timeout=timeout_s)
    try:
        if peer.getsockname() == peer.getpeername():
            raise ConnectionError("nothing listens there: the connection came back to itself")
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
