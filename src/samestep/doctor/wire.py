"""One TCP connection between two ranks: how long a message takes, how much goes through, and the clocks.

It measures what the network gives to anybody. The caller leads::

    caller                        answerer
      handshake         <--->                     both have the token: see `samestep.world.authentication`
      rank              ---->                     who it is
      8 bytes, often    ---->
                        <----     its clock       half of the shortest way there and back is the latency
      bytes for a while ---->     its rate
                        <----     bytes for a while
"""

import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from samestep.world.authenticated_client import connect
from samestep.world.authenticated_server import Callers, Server

_TOKEN = 16
_CHUNK = 256 * 1024
_PING, _ENOUGH = b"samestep", b"\xff" * 8
_LEAST, _MOST = 20, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one pair of ranks has measured.

    Args:
        a: the lower rank.
        b: the higher one.
        latency_s: half of the shortest way there and back.
        there: bytes per second from `a` to `b`.
        back: bytes per second from `b` to `a`.
        ahead_s: by how much the clock of `b` is ahead of that of `a`; good to about the latency.
        error: why there are no figures; empty where there are.
    """

    a: int
    b: int
    latency_s: float = 0.0
    there: float = 0.0
    back: float = 0.0
    ahead_s: float = 0.0
    error: str = ""


class Door:
    """Where the other ranks call this one.

    Args:
        address: of this host, at which to listen.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=64)
        self.address: str = address
        self.port: int = listener.getsockname()[1]
        self.token = secrets.token_bytes(_TOKEN)
        """What a caller must prove that it has; it leaves this host through the ranks' store alone."""
        self._callers = Callers()
        self._server = Server(listener, self.token, self._callers, name="samestep-door")

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        self._callers.close()

    def answer(self, caller: int, *, limit_s: float) -> None:
        """Wait for a rank to call, and answer until it has measured.

        Args:
            caller: the rank to wait for; others are turned away.
            limit_s: how long to wait for it, and for each of its messages.

        Raises:
            OSError: it did not call, or broke off.
        """
        connection = self._callers.taken(struct.pack("!I", caller), limit_s=limit_s)
        with connection:
            _prepare(connection, limit_s)
            _answer(connection)


def call(a: int, b: int, *, at: tuple[str, int], token: bytes, window_s: float, limit_s: float) -> Link:
    """Call rank `b` and measure.

    Args:
        a: this rank.
        b: the one to call.
        at: address and port where it listens.
        token: what both have.
        window_s: how long bytes are sent, each way.
        limit_s: how long to wait for it, and for each of its messages.

    Raises:
        OSError: it cannot be reached, or broke off.
    """
    authenticated = connect(*at, token, timeout_s=limit_s)
    with closing(authenticated):
        authenticated.ask(struct.pack("!I", a), timeout_s=limit_s)
        connection = authenticated.plain
        _prepare(connection, limit_s)
        latency, ahead = _pings(connection, window_s / 4)
        connection.sendall(_ENOUGH)
        connection.sendall(struct.pack("!d", window_s))
        _pour(connection, window_s)
        (there,) = struct.unpack("!d", _exactly(connection, 8))
        back = _drink(connection)
    return Link(a=a, b=b, latency_s=latency, there=there, back=back, ahead_s=ahead)


def _prepare(connection: socket.socket, limit_s: float) -> None:
    connection.settimeout(limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _pings(connection: socket.socket, for_s: float) -> tuple[float, float]:
    """Return the latency, and by how much the other's clock is ahead."""
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


def _answer(connection: socket.socket) -> None:
    while _exactly(connection, 8) != _ENOUGH:
        connection.sendall(struct.pack("!q", time.time_ns()))
    (window_s,) = struct.unpack("!d", _exactly(connection, 8))
    connection.sendall(struct.pack("!d", _drink(connection)))
    _pour(connection, window_s)


def _pour(connection: socket.socket, window_s: float) -> None:
    """Send chunks for a while, each with a byte before it that says that it is not the end."""
    chunk = b"\x01" + bytes(_CHUNK)
    deadline = time.monotonic() + window_s
    while time.monotonic() < deadline:
        connection.sendall(chunk)
    connection.sendall(b"\x00")


def _drink(connection: socket.socket, clock: Callable[[], float] = time.perf_counter) -> float:
    """Receive what `_pour` sends; return bytes per second over the second half of it.

    What was sent first has filled buffers on the way, which a limit of the link comes behind.
    """
    buffer = memoryview(bytearray(_CHUNK))
    arrived: list[tuple[float, int]] = [(clock(), 0)]
    while _exactly(connection, 1) == b"\x01":
        _fill(connection, buffer)
        arrived.append((clock(), arrived[-1][1] + _CHUNK))
    return rate(arrived)


def rate(arrived: list[tuple[float, int]]) -> float:
    """Return bytes per second over the second half of the time.

    Args:
        arrived: instants, and how many bytes were there.

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
            raise ConnectionError("the other rank broke off")
        view = view[count:]
