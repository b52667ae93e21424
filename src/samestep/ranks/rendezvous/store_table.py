"""Holds the keys and values of a store, and the requests that wait for keys; uses no sockets.

A request and its answer have one format: a code, a time limit in milliseconds, and byte strings, each
after its length.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from samestep.ranks.rendezvous.authenticated_server import Peer

SET, GET, ADD, COMPARE_SET, CHECK, WAIT, DELETE, COUNT = range(8)
"""Requests."""
DONE, TIMED_OUT, REFUSED = range(3)
"""Codes of answers."""
_HEAD = struct.Struct("!BQI")
_LENGTH = struct.Struct("!I")


def packed(code: int, parts: Sequence[bytes] = (), *, limit_ms: int = 0) -> bytes:
    """Return a request or an answer as bytes."""
    body = [_HEAD.pack(code, limit_ms, len(parts))]
    for part in parts:
        body += (_LENGTH.pack(len(part)), part)
    return b"".join(body)


def unpacked(message: bytes) -> tuple[int, int, list[bytes]]:
    """Return code, time limit in milliseconds and strings of a request or an answer.

    Raises:
        ValueError: the message is malformed.
    """
    if len(message) < _HEAD.size:
        raise ValueError("a message without a header")
    code, limit_ms, count = _HEAD.unpack_from(message)
    at, parts = _HEAD.size, []
    for _ in range(count):
        if len(message) < at + _LENGTH.size:
            raise ValueError("a message that is cut off")
        (length,) = _LENGTH.unpack_from(message, at)
        at += _LENGTH.size
        if len(message) < at + length:
            raise ValueError("a message that is cut off")
        parts.append(message[at : at + length])
        at += length
    if at != len(message):
        raise ValueError("a message that is longer than its header states")
    return code, limit_ms, parts


@dataclass(slots=True, eq=False)
class _Waiting:
    """Request that waits until all its keys are posted."""

    peer: Peer
    keys: list[bytes]
    deadline: float
    with_values: bool


class Table:
    """Keys and values of a store, as a service of an authenticated server."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._waiting: list[_Waiting] = []
        self._answers: dict[int, Callable[[list[bytes]], list[bytes]]] = {
            SET: self._set,
            ADD: self._add,
            COMPARE_SET: self._compare_set,
            CHECK: lambda keys: [b"1" if all(key in self._values for key in keys) else b""],
            DELETE: lambda keys: [b"1" if self._values.pop(keys[0], None) is not None else b""],
            COUNT: lambda _: [str(len(self._values)).encode()],
        }

    def received(self, peer: Peer, message: bytes) -> None:
        """See `Service.received`."""
        code, limit_ms, parts = unpacked(message)
        if code in (GET, WAIT):
            waiting = _Waiting(peer, parts, monotonic() + limit_ms / 1000, with_values=code == GET)
            if not self._answered(waiting):
                self._waiting.append(waiting)
            return
        answer = self._answers.get(code)
        try:
            if answer is None:
                raise ValueError("no such request")
            peer.send(packed(DONE, answer(parts)))
        except (ValueError, IndexError) as error:
            peer.send(packed(REFUSED, [str(error).encode()]))

    def gone(self, peer: Peer) -> None:
        """See `Service.gone`."""
        self._waiting = [waiting for waiting in self._waiting if waiting.peer is not peer]

    def passed(self, now: float) -> float | None:
        """See `Service.passed`."""
        for waiting in [waiting for waiting in self._waiting if waiting.deadline <= now]:
            self._waiting.remove(waiting)
            waiting.peer.send(packed(TIMED_OUT))
        return min((waiting.deadline for waiting in self._waiting), default=None)

    def _answered(self, waiting: _Waiting) -> bool:
        if not all(key in self._values for key in waiting.keys):
            return False
        values = [self._values[key] for key in waiting.keys] if waiting.with_values else []
        waiting.peer.send(packed(DONE, values))
        return True

    def _changed(self) -> None:
        self._waiting = [waiting for waiting in self._waiting if not self._answered(waiting)]

    def _set(self, parts: list[bytes]) -> list[bytes]:
        self._values.update(zip(parts[::2], parts[1::2], strict=True))
        self._changed()
        return []

    def _add(self, parts: list[bytes]) -> list[bytes]:
        key, amount = parts
        total = str(int(self._values.get(key, b"0")) + int(amount)).encode()
        self._values[key] = total
        self._changed()
        return [total]

    def _compare_set(self, parts: list[bytes]) -> list[bytes]:
        """Post a value as torch does: a missing key counts as empty, and the answer is the expected value."""
        key, expected, desired = parts
        current = self._values.get(key)
        if current == expected or (current is None and not expected):
            self._values[key] = desired
            self._changed()
            return [desired]
        return [expected if current is None else current]
