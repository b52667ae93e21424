"""Defines the status that each rank posts, and stores it where the others can read it.

Ranks that were forked on one node share memory: it needs no network, and keeps the last status of a process
that has ended or was stopped. Other ranks use the store of their process group, through a separate
connection: on the script's own connection, a request would wait behind whatever the script waits for. No
store needs the threads that compute.
"""

import json
import mmap
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeAlias

from samestep.base.event_record import message_at, with_checksum
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.ranks.hang.flight_recorder import has_group

State: TypeAlias = Literal["running", "left", "ended", "failed"]
"""State of a rank's script; ``left``: it runs, but has destroyed its process group."""

MESSAGES = ("send", "recv", "exchange")
"""Operations between two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A call in which a rank waits for others."""

    op: str  # name of the operation in torch
    seq: int | None  # number of the collective in its group, from 1; None for an operation without a number
    group: str  # name of the process group
    # the ranks of a collective, this one included; the other rank of a message; empty for all ranks
    ranks: tuple[int, ...]
    age_s: float  # seconds since the wait was first sampled
    number: int = 0  # number of the call on its rank; 0 where the call is known from torch's recorder only
    alone: bool = False  # whether the rank can do nothing else until the other rank of the message answers
    # the root of a broadcast, reduce, gather or scatter that the script calls; None if it is unknown
    root: int | None = None
    # the part of `DistributedDataParallel` that contains the call; empty for a call of the script
    inside: str = ""
    # number, name and data of its last collectives, such as ``(9, "all_reduce", "4 int64")``
    recent: tuple[tuple[int, str, str], ...] = ()

    @property
    def peer(self) -> int | None:
        """The other rank of a message; None for a collective, and for a message from any rank."""
        return self.ranks[0] if self.op in MESSAGES and self.ranks else None

    def __str__(self) -> str:
        number = "" if self.seq is None else f" #{self.seq}"
        group = "" if self.group in ("", "0") else f" of group {self.group}"
        return f"{self.op}{number}{group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """The status of one rank."""

    generation: int  # number of restarts of the workers before
    beat: int  # number that increases with every status of this rank
    state: State = "running"  # state of the script
    # current line of the script, as ``file:line: text``; of a script that has ended, the line that raised, or
    # called `sys.exit`
    line: str = ""
    entered: dict[str, int] = field(default_factory=dict)  # number of collectives entered, by group
    has_joined: bool = False  # whether the rank has, or had, a process group
    wait: Wait | None = None  # the longest current wait
    gave_up: bool = False  # whether the rank has stopped waiting, since its wait failed
    circle: str = ""  # the ranks that wait for each other, as text, if this rank has detected such ranks
    host: str = ""  # host name of the process
    pid: int = 0  # id of the process

    @property
    def collectives(self) -> int:
        """Number of collectives entered in all groups."""
        return sum(self.entered.values())

    def to_bytes(self) -> bytes:
        """Return the status as bytes."""
        return json.dumps(asdict(self)).encode()


def parse_statuses(messages: Mapping[int, bytes]) -> dict[int, RankStatus]:
    """Return statuses from messages, by rank."""
    return {rank: parse_status(message) for rank, message in messages.items()}


def parse_status(message: bytes) -> RankStatus:
    """Return the status from the bytes of `RankStatus.to_bytes`."""
    values: dict[str, Any] = json.loads(message)
    wait = values.pop("wait")
    if wait is not None:
        recent = tuple((number, op, data) for number, op, data in wait["recent"])
        wait = Wait(**{**wait, "ranks": tuple(wait["ranks"]), "recent": recent})
    return RankStatus(**values, wait=wait)


_SLOT = 4096  # bytes for the status of a rank: a page
_TIMEOUT = timedelta(seconds=30)  # of a request to the store: a guess, far above what a busy one takes
_ABORTED = "over"  # key that is set when the run is over
_FLUSH_S, _POLL_S = 2.0, 0.1
"""Seconds to wait for a round of requests, and between two while lingering: guesses."""
_TO_BE_READ = 2  # intervals in which every rank has made a request, since it may have just made the last one


class StatusStore(Protocol):
    """The last message of each rank."""

    @property
    def is_aborted(self) -> bool:
        """Whether a rank has aborted the run, and no launcher ends this rank."""

    def post(self, message: bytes) -> None:
        """Replace this rank's message."""

    def read(self) -> Mapping[int, bytes]:
        """Return the messages that can be read, by rank; they can be one interval old."""

    def refresh(self) -> bool:
        """Make the posted message, and those that were posted before, readable; return whether it worked."""

    def abort(self) -> None:
        """Signal to all ranks that the run is over."""

    def linger(self, is_done: Callable[[], bool]) -> None:
        """Block while other ranks need this process to read the store, until `is_done` returns True."""

    def close(self, *, wait: bool = True) -> None:
        """Release what the store uses, and `wait` until its requests have ended."""


class SharedMemoryStore:
    """A status store in memory that forked processes share; their launcher ends all when one fails.

    The store must be created before the ranks are forked.
    """

    is_aborted = False

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size * _SLOT)
        self.rank = 0  # rank of this process; set after the fork

    def use_here(self, rank: int) -> None:
        """Make this the store of this process, which is `rank`: see `inherited_store`."""
        self.rank = rank
        _inherited[:] = [self]

    def post(self, message: bytes) -> None:
        """See `StatusStore.post`; a message that is longer than a slot is not stored."""
        if len(slot := with_checksum(message)) <= _SLOT:
            self._memory[self.rank * _SLOT : self.rank * _SLOT + len(slot)] = slot

    def read(self) -> dict[int, bytes]:
        """See `StatusStore.read`; a message that is being written is left out."""
        slots = (self._memory[at : at + _SLOT] for at in range(0, len(self._memory), _SLOT))
        messages = {rank: message_at(slot, 0) for rank, slot in enumerate(slots)}
        return {rank: message for rank, message in messages.items() if message}

    def refresh(self) -> bool:
        """See `StatusStore.refresh`."""
        return True

    def abort(self) -> None:
        """See `StatusStore.abort`."""

    def linger(self, is_done: Callable[[], bool]) -> None:
        """See `StatusStore.linger`."""

    def close(self, *, wait: bool = True) -> None:
        """See `StatusStore.close`."""


_inherited: list[SharedMemoryStore] = []


def inherited_store() -> SharedMemoryStore | None:
    """Return the store that this process has inherited from the launcher that forked it."""
    return _inherited[-1] if _inherited else None


class ProcessGroupStore:
    """A status store in the store of the default process group; empty until there is one.

    A separate thread makes the requests, because the store does not answer if its server is stopped. It makes
    none while nothing is posted or read. `interval_s` is between two rounds of requests, and `served_here`
    whether this process serves the store. `keep` is called with the group's store, to keep it open after the
    group has been destroyed: statuses are posted and read until then.
    """

    def __init__(
        self,
        place: Place,
        *,
        interval_s: float,
        served_here: bool,
        keep: Callable[[Any], None] = lambda _: None,
        prefix: str = "samestep/watch",
    ) -> None:
        self.is_aborted = False
        self._place, self._interval_s = place, interval_s
        self._served_here, self._keep = served_here, keep
        self._prefix = prefix
        self._message = self._sent = b""
        self._messages: dict[int, bytes] = {}
        self._has_aborted = self._is_closed = False
        self._wanted, self._wake = threading.Event(), threading.Event()
        self._begun = self._ended = 0  # numbers of rounds of requests
        self._group_store: Any = None  # a reference, so that the store's server outlives the group
        self._thread = threading.Thread(target=self._run, name="samestep-status", daemon=True)
        self._thread.start()

    def post(self, message: bytes) -> None:
        """See `StatusStore.post`."""
        self._message = message

    def read(self) -> dict[int, bytes]:
        """See `StatusStore.read`."""
        self._wanted.set()
        self._wake.set()
        return dict(self._messages)

    def refresh(self) -> bool:
        """See `StatusStore.refresh`."""
        self._wanted.set()
        return self._flush()

    def abort(self) -> None:
        """See `StatusStore.abort`; returns after two intervals, in which the other ranks read the signal."""
        self._has_aborted = True
        self._flush()
        time.sleep(_TO_BE_READ * self._interval_s)

    def linger(self, is_done: Callable[[], bool]) -> None:
        """See `StatusStore.linger`; posts the last message first, and requests those of the other ranks."""
        self.refresh()
        if self._group_store is None or not self._served_here:
            return
        while self._thread.is_alive() and not self.is_aborted and not is_done():
            self.refresh()
            time.sleep(_POLL_S)
        if self.is_aborted:  # the rank that aborted makes one more request
            time.sleep(2 * _TO_BE_READ * self._interval_s)

    def close(self, *, wait: bool = True) -> None:
        """See `StatusStore.close`; a server that does not answer is waited for `_FLUSH_S`.

        A thread that is inside torch when the interpreter ends aborts the process.
        """
        self._is_closed = True
        self._wake.set()
        if wait and self._thread is not threading.current_thread():
            self._thread.join(_FLUSH_S)

    def _flush(self) -> bool:
        """Return whether a round of requests that begins now has ended; False without a group."""
        wanted = self._begun + 1
        self._wake.set()
        if not (has_group() or self._group_store is not None):
            return False
        holds_within(lambda: self._ended >= wanted or not self._thread.is_alive(), _FLUSH_S)
        return self._ended >= wanted

    def _run(self) -> None:
        store: Any = None
        with suppress(Exception):  # the process that served the store has ended
            while True:
                self._wake.wait(self._interval_s)
                self._wake.clear()
                if self._is_closed:
                    return
                self._begun = number = self._begun + 1
                store, has_aborted = store or self._connect(), self._has_aborted
                if store is None or not self._message:
                    continue
                if has_aborted or self._wanted.is_set() or self._message != self._sent:
                    self._request(store, has_aborted=has_aborted)
                self._ended = number
                if has_aborted:
                    return

    def _request(self, store: Any, *, has_aborted: bool) -> None:
        self._sent = self._message
        store.set(str(self._place.rank), self._sent)
        if has_aborted:
            store.set(_ABORTED, "1")
        self.is_aborted = self.is_aborted or store.check([_ABORTED])
        if self._wanted.is_set():  # with many ranks, reading all messages is expensive
            self._wanted.clear()
            known = [rank for rank in range(self._place.size) if store.check([str(rank)])]
            self._messages = {rank: store.get(str(rank)) for rank in known}

    def _connect(self) -> Any:
        """Return a separate connection to the default group's store, with a prefix; None without a group."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or not c10d.is_initialized():
            return None
        self._group_store = c10d._get_default_store()  # noqa: SLF001 - no public spelling
        self._keep(self._group_store)
        store = self._group_store.clone()
        store.set_timeout(_TIMEOUT)
        return c10d.PrefixStore(self._prefix, store)
