"""Carries the times that rank 0 reads to the other ranks: in shared memory, or by the store of several hosts.

Rank 0 publishes and does not wait; a read in shared memory takes some microseconds.
"""

import mmap
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Protocol, TypeVar
from zlib import crc32

from samestep.base.polling import polls

T = TypeVar("T", int, float)
_CALLS = "calls"  # the key of the number of model calls that rank 0 has begun
_SLICE = timedelta(seconds=0.2)
"""The time between checks that rank 0 can still publish a time."""
_PATIENCE_S = 60.0
"""Seconds that a rank waits for a time of rank 0."""
_KEPT_CALLS = 256
"""Model calls after which rank 0 deletes a time."""
_HEADER = 64
_RECORDS = 4096
_RECORD, _CHECKED = struct.Struct("<q8s8sI4x"), 24
"""A record: its number, the digest of its key, the time, and a checksum of these `_CHECKED` bytes."""
_MOST_PENDING = 1024
"""Records that a rank keeps because it has not requested them yet."""
BYTES = _HEADER + _RECORDS * _RECORD.size
"""The size of the shared memory."""


class PublishedTimes(Protocol):
    """The times that rank 0 has published."""

    def begin(self, calls: int) -> None:
        """Publish the number of model calls that rank 0 has begun."""

    def put(self, key: str, value: float, calls: int) -> None:
        """Publish a time that rank 0 has read after so many calls."""

    def get(self, key: str, like: T, calls: int) -> T | None:
        """Wait for a time of rank 0, of the type of `like`; return None if rank 0 no longer publishes it."""


class TimesInMemory:
    """Times in shared memory, as a ring of records in the order in which rank 0 publishes them.

    Args:
        memory: `BYTES` of memory, filled with zeros.
        is_stuck: whether rank 0 waits for other ranks.
    """

    def __init__(self, memory: mmap.mmap, is_stuck: Callable[[], bool]) -> None:
        self._memory, self._is_stuck = memory, is_stuck
        self._next = 1
        self._pending: dict[bytes, bytes] = {}

    def begin(self, calls: int) -> None:
        """Publish the number of model calls that rank 0 has begun."""
        self._memory[:8] = calls.to_bytes(8, "little")

    def put(self, key: str, value: float, calls: int) -> None:  # noqa: ARG002 - as in the store
        """Publish a time that rank 0 has read after so many calls."""
        time_bytes = struct.pack("<q" if isinstance(value, int) else "<d", value)
        checked = struct.pack("<q8s8s", self._next, _digest(key), time_bytes)
        begin = self._begin(self._next)
        # The checksum lets a reader recognize a record that is written meanwhile, on every processor.
        self._memory[begin : begin + _RECORD.size] = checked + struct.pack("<I4x", crc32(checked))
        self._next += 1

    def get(self, key: str, like: T, calls: int) -> T | None:
        """Wait for a time of rank 0, of the type of `like`; return None if rank 0 no longer publishes it."""
        digest, layout = _digest(key), "<q" if isinstance(like, int) else "<d"
        for _ in polls(_PATIENCE_S, least_s=0.0):
            is_last = int.from_bytes(self._memory[:8], "little") > calls or self._is_stuck()
            self._receive()
            found = self._pending.pop(digest, None)
            if found is not None:
                return type(like)(struct.unpack(layout, found)[0])
            if is_last:
                break
        return None

    def _receive(self) -> None:
        """Take the records that rank 0 has written since the last call."""
        while True:
            begin = self._begin(self._next)
            record = self._memory[begin : begin + _RECORD.size]
            number, digest, value, checksum = _RECORD.unpack(record)
            if number < self._next or crc32(record[:_CHECKED]) != checksum:
                return
            self._next = max(self._next, number)  # rank 0 may be a whole ring ahead, and has overwritten some
            if len(self._pending) >= _MOST_PENDING:
                self._pending.clear()
            self._pending[digest] = value
            self._next += 1

    @staticmethod
    def _begin(number: int) -> int:
        return _HEADER + number % _RECORDS * _RECORD.size


class Store(Protocol):
    """The part of torch's `Store` that times use."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return once there are values; raise `RuntimeError` after `timeout`."""

    def delete_key(self, key: str, /) -> bool:
        """Delete a value."""


class TimesInStore:
    """Times in a store, which ranks of several hosts have in common.

    Args:
        store: the store.
        is_stuck: whether rank 0 waits for other ranks.
    """

    def __init__(self, store: Store, is_stuck: Callable[[], bool]) -> None:
        self._store, self._is_stuck = store, is_stuck
        self._stored: deque[tuple[int, str]] = deque()

    def begin(self, calls: int) -> None:
        """Publish the number of model calls that rank 0 has begun."""
        self._store.set(_CALLS, str(calls))
        while self._stored and self._stored[0][0] < calls - _KEPT_CALLS:
            self._store.delete_key(self._stored.popleft()[1])

    def put(self, key: str, value: float, calls: int) -> None:
        """Publish a time that rank 0 has read after so many calls."""
        self._store.set(key, repr(value))
        self._stored.append((calls, key))

    def get(self, key: str, like: T, calls: int) -> T | None:
        """Wait for a time of rank 0, of the type of `like`; return None if rank 0 no longer publishes it."""
        end = time.monotonic() + _PATIENCE_S
        with suppress(RuntimeError):  # rank 0 has ended, and its store is gone
            while True:
                with suppress(RuntimeError):  # not within the time limit
                    self._store.wait([key], _SLICE)
                    return type(like)(self._store.get(key))
                if int(self._store.get(_CALLS)) > calls or self._is_stuck() or time.monotonic() > end:
                    break
        return None


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=8).digest()
