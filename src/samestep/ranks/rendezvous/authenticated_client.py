"""Connects to a server, which must prove that it has the job's secret before anything else is sent."""

import os
import socket
from contextlib import suppress
from time import monotonic

from samestep.ranks.rendezvous.authentication import AuthenticationError, Channel, ClientSide

_CHUNK = 1 << 16


class Connection:
    """Authenticated connection of this process; one thread at a time uses it.

    Args:
        peer: socket of the connection.
        channel: seals and opens its messages.
    """

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
        """Send a message and return the answer.

        Args:
            message: at most `authentication.LONGEST` bytes.
            timeout_s: seconds for sending and answer together.

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

    Args:
        address: address of the server.
        port: port of the server.
        key: key of the job, for this purpose.
        timeout_s: seconds for the whole handshake, however slowly the other end sends.

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
