"""Measures latency, bandwidth and the clock difference of two ranks over one TCP connection.

The figures are those of plain TCP, without Gloo or NCCL. The client controls the measurement::

    client                        server
      handshake         <--->                     see `samestep.ranks.rendezvous.authentication`
      rank              ---->                     the client's own
      8 bytes, often    ---->
                        <----     its clock       half of the shortest round trip is the latency
      bytes for a while ---->     their rate
                        <----     bytes for a while
"""

import secrets
import socket
import struct
import time
from contextlib import closing
from dataclasses import dataclass

from samestep.ranks.rendezvous.authenticated_server import Callers, Server
from samestep.ranks.rendezvous.authentication import connect

_TOKEN = 16
_CHUNK = 256 * 1024
_PING, _ENOUGH = b"samestep", b"\xff" * 8
_LEAST, _MOST = 20, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Measurements of one pair of ranks."""

    a: int  # the lower rank
    b: int  # the higher rank
    latency_s: float = 0.0  # half of the shortest round trip
    there: float = 0.0  # bytes per second from `a` to `b`
    back: float = 0.0  # bytes per second from `b` to `a`
    ahead_s: float = 0.0  # seconds by which the clock of `b` is ahead; accurate to about the latency
    error: str = ""  # reason why there are no figures; empty if there are


class LinkServer:
    """A TCP server at an address of this host, which the other ranks connect to for measurements."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=64)
        self.address: str = address
        self.port: int = listener.getsockname()[1]
        self.token = secrets.token_bytes(_TOKEN)
        """Secret that a client must prove to have; it leaves this host only through the ranks' store."""
        self._callers = Callers()
        self._server = Server(listener, self.token, self._callers, name="samestep-links")

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        self._callers.close()

    def answer(self, caller: int, *, limit_s: float) -> None:
        """Wait for a rank to connect, and reply until it has measured.

        `limit_s` is for its connection, and for each message.

        Raises:
            OSError: it did not connect, or closed the connection.
        """
        with self._callers.taken(struct.pack("!I", caller), limit_s=limit_s) as connection:
            _configure(connection, limit_s)
            while _exactly(connection, 8) != _ENOUGH:
                connection.sendall(struct.pack("!q", time.time_ns()))
            (window_s,) = struct.unpack("!d", _exactly(connection, 8))
            connection.sendall(struct.pack("!d", _receive_chunks(connection)))
            _send_chunks(connection, window_s)


def measure_pair(
    a: int, b: int, *, at: tuple[str, int], token: bytes, window_s: float, limit_s: float
) -> Link:
    """Connect from rank `a`, which this is, to rank `b`, and measure for `window_s` in each direction.

    Raises:
        OSError: it cannot be reached, or closed the connection.
    """
    authenticated = connect(*at, token, timeout_s=limit_s)
    with closing(authenticated):
        authenticated.ask(struct.pack("!I", a), timeout_s=limit_s)
        connection = authenticated.plain
        _configure(connection, limit_s)
        latency, ahead = _ping(connection, window_s / 4)
        connection.sendall(_ENOUGH)
        connection.sendall(struct.pack("!d", window_s))
        _send_chunks(connection, window_s)
        (there,) = struct.unpack("!d", _exactly(connection, 8))
        back = _receive_chunks(connection)
    return Link(a=a, b=b, latency_s=latency, there=there, back=back, ahead_s=ahead)


def _configure(connection: socket.socket, limit_s: float) -> None:
    connection.settimeout(limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ping(connection: socket.socket, for_s: float) -> tuple[float, float]:
    """Return the latency, and the seconds by which the other rank's clock is ahead."""
    best, ahead = float("inf"), 0.0
    deadline = time.monotonic() + for_s
    count = 0
    while count < _LEAST or (count < _MOST and time.monotonic() < deadline):
        clock, begin = time.time_ns(), time.perf_counter()
        connection.sendall(_PING)
        (theirs,) = struct.unpack("!q", _exactly(connection, 8))
        took = time.perf_counter() - begin
        if took < best:
            best, ahead = took, (theirs - clock) / 1e9 - took / 2
        count += 1
    return best / 2, ahead


def _send_chunks(connection: socket.socket, window_s: float) -> None:
    """Send chunks for a while, each after a byte 1; a byte 0 marks the end."""
    chunk = b"\x01" + bytes(_CHUNK)
    deadline = time.monotonic() + window_s
    while time.monotonic() < deadline:
        connection.sendall(chunk)
    connection.sendall(b"\x00")


def _receive_chunks(connection: socket.socket) -> float:
    """Receive the chunks of `_send_chunks`; return bytes per second over the second half of the time.

    The first bytes fill buffers on the way, so that a limit of the link shows only after them.
    """
    buffer = memoryview(bytearray(_CHUNK))
    arrived: list[tuple[float, int]] = [(time.perf_counter(), 0)]
    while _exactly(connection, 1) == b"\x01":
        _fill(connection, buffer)
        arrived.append((time.perf_counter(), arrived[-1][1] + _CHUNK))
    return rate(arrived)


def rate(arrived: list[tuple[float, int]]) -> float:
    """Return bytes per second over the second half of the time, from pairs of instant and bytes until then.

    >>> rate([(0.0, 0), (1.0, 1000), (2.0, 1100), (3.0, 1200), (4.0, 1300)])
    100.0
    """
    (begin, _), (end, total) = arrived[0], arrived[-1]
    half = [(at, count) for at, count in arrived if at >= (begin + end) / 2][:-1] or [arrived[0]]
    at, count = half[0]
    return (total - count) / (end - at) if end > at else 0.0


def _exactly(connection: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    _fill(connection, memoryview(buffer))
    return bytes(buffer)


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionError("the other rank closed the connection")
        view = view[count:]
