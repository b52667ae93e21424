"""Implements torch's key-value store over authenticated connections; `TCPStore` serves any process instead.

A request and its answer have one format: a code, a time limit in milliseconds, and byte strings, each
after its length. The server's table holds keys, values and the requests that wait for keys.

torch holds a store in C++, which cannot keep a Python object alive: `keep_for` keeps it as long as a process
group needs it.
"""

import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store  # type: ignore[attr-defined]

from samestep.base.errors import PeerLost
from samestep.base.polling import polls
from samestep.ranks.rendezvous.authentication import (
    BACKLOG,
    AuthenticationError,
    Connection,
    Peer,
    Server,
    connect,
    derived,
)
from samestep.ranks.rendezvous.endpoint import no_answer

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


_AT_ONCE = 8  # ranks whose values are fetched together; Gloo's values grow with the number of ranks


class ReadAhead:
    """Values that waits have fetched and that no get has returned, of keys that are posted only once."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = str(rank), size
        self._series: set[str] = set()
        self._values: dict[str, bytes] = {}

    def posted(self, key: str) -> None:
        """Note that this rank posts a value."""
        series, _, number = key.rpartition("/")
        if number == self._rank:
            self._series.add(series)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys to fetch at a wait for `keys`; none if all of these have been fetched.

        >>> ahead = ReadAhead(rank=1, size=3)
        >>> ahead.missing(["address/0"])
        ['address/0']
        >>> ahead.posted("address/1")
        >>> ahead.missing(["address/0", "other"])
        ['address/0', 'address/1', 'address/2', 'other']
        """
        unfetched = [
            wanted for key in keys if key not in self._values for wanted in (key, *self._of_series(key))
        ]
        return list(dict.fromkeys(unfetched))

    def fetched(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Keep the values of these keys."""
        self._values.update(zip(keys, values, strict=True))

    def taken(self, key: str) -> bytes | None:
        """Return a fetched value, once; None if there is none."""
        return self._values.pop(key, None)

    def _of_series(self, key: str) -> list[str]:
        """Return the keys of the same series that are fetched with `key`."""
        series, _, number = key.rpartition("/")
        if series not in self._series or not number.isdecimal():
            return []
        first = int(number) - int(number) % _AT_ONCE
        return [f"{series}/{rank}" for rank in range(first, min(first + _AT_ONCE, self._size))]


T = TypeVar("T")
_LEAST_TRY_S, _TRY_S = 0.1, 5.0
"""Least and maximum seconds of one connection, with its handshake: guesses."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.0005, 0.25
"""Shortest and longest pause between two requests: ranks of one host start at about the same time, and a rank
that comes late delays the others by a quarter of a second at most."""
_FOREIGN_S = 3.0
"""Seconds of retries with a server that lacks the job's secret: it may be one that is about to end."""
_SLACK_S = 10.0  # seconds that an answer may arrive after its limit: a guess
_NAMED = 4  # keys that a message names: a guess at what is read
_kept: "list[NetworkStore]" = []
_serving: "weakref.WeakValueDictionary[tuple[int, bytes], Server]" = weakref.WeakValueDictionary()
"""Servers of this process, by port and key: several stores may share one, as with torch's."""
_lasting: set[Server] = set()
"""Servers that run until the process ends."""


class NetworkStore(Store):
    """Store that this process or another one serves.

    `server` is that of this process, if this process serves the store.
    """

    timeout: timedelta  # of torch's Store

    def __init__(self, address: str, port: int, key: bytes, server: Server | None = None) -> None:
        super().__init__()
        self._address, self._port, self._key, self._server = address, port, key, server
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._users = 0
        self._observers: dict[int, Callable[[bytes], None]] = {}
        self._ahead: dict[int, ReadAhead] = {}
        _kept.append(self)

    @property
    def port(self) -> int:
        """Port of the server."""
        return self._port

    def key_for(self, *labels: str) -> bytes:
        """Return a key of the job for one purpose, which `labels` name."""
        return derived(self._key, *labels)

    def observed(self, observe: Callable[[bytes], None]) -> AbstractContextManager[None]:
        """Call `observe` with each value that this thread posts within the block, before it is posted."""
        return _of_this_thread(self._observers, observe)

    def reading_ahead(self, rank: int, size: int) -> AbstractContextManager[None]:
        """Let waits of this thread within the block fetch values for the gets that follow; see `ReadAhead`.

        All keys that the thread waits for must be posted only once.
        """
        return _of_this_thread(self._ahead, ReadAhead(rank, size))

    # --- methods that torch calls; its bindings require C++'s spelling of two names ---

    def set(self, key: str, value: str | bytes) -> None:
        """Post a value."""
        data, thread = _bytes(value), threading.get_ident()
        if (observe := self._observers.get(thread)) is not None:
            observe(data)
        if (ahead := self._ahead.get(thread)) is not None:
            ahead.posted(key)
        self._ask(SET, [_bytes(key), data])

    def get(self, key: str) -> bytes:
        """Return a value, once it is posted."""
        ahead = self._ahead.get(threading.get_ident())
        value = None if ahead is None else ahead.taken(key)
        return self.multi_get([key])[0] if value is None else value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return values, once all are posted."""
        return self._ask(GET, list(map(_bytes, keys)), waits=self.timeout)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Post values."""
        self._ask(SET, [_bytes(part) for pair in zip(keys, values, strict=True) for part in pair])

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return the sum."""
        return int(self._ask(ADD, [_bytes(key), str(amount).encode()])[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Post a value if the present one is the expected one; return the value that the key then has."""
        return self._ask(COMPARE_SET, [_bytes(key), _bytes(expected), _bytes(desired)])[0]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are posted."""
        return bool(self._ask(CHECK, list(map(_bytes, keys)))[0])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once all keys are posted."""
        limit, ahead = timeout or self.timeout, self._ahead.get(threading.get_ident())
        if ahead is None:
            self._ask(WAIT, list(map(_bytes, keys)), waits=limit)
        elif missing := ahead.missing(keys):
            ahead.fetched(missing, self._ask(GET, list(map(_bytes, missing)), waits=limit))

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return bool(self._ask(DELETE, [_bytes(key)])[0])

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return int(self._ask(COUNT, [])[0])

    def clone(self) -> "NetworkStore":
        """Return this store: its threads use separate connections in any case."""
        return self

    deleteKey = delete_key  # noqa: N815 - torch's trampoline
    getNumKeys = num_keys  # noqa: N815 - torch's trampoline

    # --- lifetime ---

    def keep_for(self, user: object | None) -> None:
        """Keep the store open as long as `user` exists; the last one's end closes it, and None never ends."""
        self._users += 1
        if user is None:
            return
        # Handlers of atexit, which may run later, use the store as well.
        weakref.finalize(user, self._let_go).atexit = False

    def keep_server(self) -> None:
        """Let the server run until the process ends, if this process serves the store.

        A rank that creates its next group before rank 0 has ended the last one connects to a server that
        is about to close otherwise.
        """
        if self._server is not None:
            _lasting.add(self._server)

    def close(self) -> None:
        """Close all connections, and the server if this is the last store that needs it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self in _kept:
            _kept.remove(self)
        server, self._server = self._server, None
        if server is None or server in _lasting or any(store.serves_with(server) for store in _kept):
            return
        server.close()

    def serves_with(self, server: Server) -> bool:
        """Return whether this store needs that server."""
        return self._server is server

    def _let_go(self) -> None:
        self._users -= 1
        if not self._users:
            self.close()

    def _ask(self, code: int, parts: Sequence[bytes], *, waits: timedelta = timedelta(0)) -> list[bytes]:
        limit_s = waits.total_seconds()
        message = packed(code, parts, limit_ms=max(0, int(limit_s * 1000)))
        try:
            answer = self._answer(message, limit_s + max(_SLACK_S, self.timeout.total_seconds() - limit_s))
            status, _, values = unpacked(answer)
        except (OSError, ValueError) as error:
            raise DistNetworkError(f"the store at {self._address}:{self._port} is lost: {error}") from error
        if status == TIMED_OUT:
            names = ", ".join(part.decode(errors="replace") for part in parts[:_NAMED])
            raise DistStoreError(f"wait timeout after {limit_s:g} s: no rank has set {names}")
        if status != DONE:
            raise DistStoreError(f"the store refuses the request: {values[0].decode()}")
        return values

    def _answer(self, message: bytes, timeout_s: float) -> bytes:
        connection = self._taken()
        try:
            answer = connection.ask(message, timeout_s=timeout_s)
        except BaseException:  # a part of the answer may still arrive
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return answer
        connection.close()
        return answer

    def _taken(self) -> Connection:
        """Return a connection that no other thread uses."""
        with self._lock:
            if self._closed:
                raise ConnectionError("closed")
            inherited = [connection for connection in self._idle if not connection.is_own]
            self._idle = [connection for connection in self._idle if connection.is_own]
            unused = self._idle.pop() if self._idle else None
        for connection in inherited:  # by a fork
            connection.close()
        return unused or connect(self._address, self._port, self._key, timeout_s=_TRY_S)

    def reach(self, timeout_s: float) -> None:
        """Return once the server answers; it may not have started yet.

        Raises:
            PeerLost: the server does not answer, or does not have this job's secret.
        """
        foreign, failure = None, OSError("no answer")
        for waited in polls(timeout_s, least_s=LEAST_PAUSE_S):
            limit_s = seconds_of_try(timeout_s - waited)
            try:
                self._idle.append(connect(self._address, self._port, self._key, timeout_s=limit_s))
            except AuthenticationError as error:
                foreign = monotonic() if foreign is None else foreign
                if monotonic() - foreign > min(_FOREIGN_S, timeout_s):
                    raise _not_ours(self._address, self._port) from error
            except OSError as error:
                failure = error
            else:
                return
        if foreign is not None:
            raise _not_ours(self._address, self._port)
        raise no_answer(f"at {self._address}:{self._port}", timeout_s, failure) from failure


def seconds_of_try(left_s: float) -> float:
    """Return the timeout of one connection, where `left_s` seconds are left for all tries."""
    return max(_LEAST_TRY_S, min(_TRY_S, left_s))


def serve(address: str, port: int, key: bytes, *, everywhere: bool) -> NetworkStore:
    """Return a store that this process serves; an existing server of the same port and key is shared.

    Port 0 is any free one. The server listens only on `address`, or `everywhere`.

    Raises:
        OSError: the port is in use, or the address is not this host's.
    """
    server = _serving.get((port, key))
    if server is None or server.is_closed:
        server = Server(_listener(address, port, everywhere=everywhere), key, Table(), name="samestep-store")
        _serving[server.port, key] = server
    return NetworkStore("127.0.0.1" if everywhere else address, server.port, key, server)


def _listener(address: str, port: int, *, everywhere: bool) -> socket.socket:
    if everywhere and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled; then the port may still be free
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
    family = socket.AF_INET6 if ":" in address and not everywhere else socket.AF_INET
    return socket.create_server(("" if everywhere else address, port), family=family, backlog=BACKLOG)


def base_of(store: Any) -> NetworkStore | None:
    """Return the store below torch's prefixes if it is a `NetworkStore`, else None."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, NetworkStore) else None


def keep_open(store: Any) -> None:
    """Keep a store open until the process ends, if the one below torch's prefixes is a `NetworkStore`."""
    if (base := base_of(store)) is not None:
        base.keep_for(None)


def close_all() -> None:
    """Close every store of this process, and all servers."""
    while _kept:
        _kept[0].close()
    while _lasting:
        _lasting.pop().close()


@contextmanager
def _of_this_thread(by_thread: dict[int, T], value: T) -> Iterator[None]:
    thread = threading.get_ident()
    by_thread[thread] = value
    try:
        yield
    finally:
        del by_thread[thread]


def _not_ours(address: str, port: int) -> PeerLost:
    return PeerLost(
        f"the process at {address}:{port} does not have this job's secret. If it is rank 0 on another "
        "node, the nodes do not share a home directory: give --secret-file FILE (or SAMESTEP_SECRET_FILE), "
        "the same file on every node. Otherwise another program has the port: choose another MASTER_PORT."
    )


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
