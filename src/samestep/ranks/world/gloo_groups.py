"""Creates Gloo's process groups such that every connection leads to a rank of this job.

Gloo accepts the first process that connects, and requires only a small number. So each group is created in
these steps, which use the job's protected store:

1. All ranks of the group wait for each other; only then does Gloo open its listening sockets.
2. Gloo connects the ranks.
3. Each rank sends every other rank a proof over the connection itself: an HMAC of both ranks and of a random
   value, which is posted to the store for this attempt.
4. The ranks compare results. If all proofs are right, Gloo's sockets accept no more connections.

If a foreign process connected first, there is another attempt. In that attempt, Gloo's sockets accept
connections only from addresses and ports that the job's ranks have posted after their kernels sent the first
packet.
"""

import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from time import monotonic
from typing import Any

import torch
from torch.distributed import DistNetworkError, PrefixStore, Store  # type: ignore[attr-defined]

from samestep.base import env
from samestep.hooks import declarations
from samestep.hooks.registry import put
from samestep.ranks.rendezvous.authentication import derived
from samestep.ranks.rendezvous.gloo_interface import IFNAME
from samestep.ranks.rendezvous.network_store import NetworkStore, base_of
from samestep.ranks.rendezvous.packet_filter import Source, admit, own_attempts, own_listeners

PROOFS_S = (2.0, 5.0, 30.0)
"""Timeouts of the proofs in seconds, by attempt; with guarded sockets there is time for slow ranks."""
_PROOF = 32
_BAD = 1 << 32  # number that a rank adds if it is connected to a foreign process; the lower half counts ranks
_LOOK_S = 0.005
_MOST_OF = 0.9  # fraction of the timeout; a rank that has waited longer has waited for another rank
_SOURCE = struct.Struct("!4sH")


def protect_groups() -> None:
    """Make torch create Gloo's groups with `connected`, if their store is the job's."""
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    if not isinstance(c10d.ProcessGroupGloo, _Protected):
        protected = _Protected("ProcessGroupGloo", (), {"torchs": staticmethod(c10d.ProcessGroupGloo)})
        put(declarations.GLOO_GROUP, protected)


class _Protected(type):
    """Stand-in for torch's class where torch creates groups and checks whether a group is Gloo's."""

    torchs: Any

    def __call__(cls, store: Store, rank: int, size: int, *more: Any, **options: Any) -> Any:
        timeout = options.get("timeout", *more[:1])
        base = base_of(store)
        if base is None or size == 1 or not isinstance(timeout, timedelta):
            return cls.torchs(store, rank, size, *more, **options)
        return connected(cls.torchs, Group(base, store, rank, size, timeout))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.torchs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.torchs, name)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that Gloo connects."""

    base: NetworkStore  # the job's store
    store: Store  # the group's part of it
    rank: int  # rank of this process
    size: int  # number of ranks
    timeout: timedelta  # time that a rank waits for the others

    def others(self) -> list[int]:
        """Return the other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]


def connected(make: Any, group: Group, *, proofs_s: Sequence[float] = PROOFS_S) -> Any:
    """Return a group of Gloo whose connections all lead to ranks that have the job's secret.

    `make` is torch's class; `proofs_s` are the maximum seconds of the proofs, for each attempt.

    Raises:
        DistNetworkError: a foreign process connected first, in every attempt.
        DistStoreError: a rank did not arrive in time.
    """
    with group.base.reading_ahead(group.rank, group.size):
        return _connected(make, group, proofs_s)


def _connected(make: Any, group: Group, proofs_s: Sequence[float]) -> Any:
    for attempt, proof_s in enumerate(proofs_s):
        store: Any = PrefixStore(f"samestep/{attempt}", group.store)
        come = store.add("come", 1)
        # A group of this name may have been created before.
        store = PrefixStore(str((come - 1) // group.size), store)
        if come % group.size == 0:
            store.set("nonce", secrets.token_bytes(_PROOF))
        nonce = _awaited(group, store, "nonce")
        listening = _Listening(group, store, guarded=attempt > 0)
        with listening.watched():
            made, problem = _made(make, group, store, listening)
            problem = problem or _problem(made, group, nonce, proof_s)
            if _all_good(group, store, good=problem is None):
                listening.close_to_all()
                return made
    raise DistNetworkError(
        f"the connections of rank {group.rank} of {group.size} were not proved to be of this job, "
        f"{len(proofs_s)} times: {problem or 'another rank has found it'}. A rank does not answer, or "
        "another user of this host or of the network disturbs the start; see docs/guide/security.md."
    )


def _made(make: Any, group: Group, store: Store, listening: "_Listening") -> tuple[Any, Exception | None]:
    """Return Gloo's group, or None and its error.

    Raises:
        RuntimeError: Gloo cannot open its socket, or a rank did not arrive in time; no foreign process
            causes these.
    """
    begin = monotonic()
    try:
        made = make(PrefixStore("gloo", store), group.rank, group.size, timeout=group.timeout)
    except RuntimeError as error:
        if not listening.has_posted or monotonic() - begin > _MOST_OF * group.timeout.total_seconds():
            raise
        return None, error
    return made, None


def _problem(made: Any, group: Group, nonce: bytes, proof_s: float) -> Exception | None:
    """Return the error of a group whose connections lack proofs; None if all are right."""
    try:
        _prove(made, group, group.base.key_for("gloo", nonce.hex()), proof_s)
    except RuntimeError as error:
        return error
    return None


def _awaited(group: Group, store: Any, key: str) -> bytes:
    """Return a value, once it is posted: in one request if the store's timeout is the group's."""
    if group.timeout != group.base.timeout:
        store.wait([key], group.timeout)
    found: bytes = store.get(key)
    return found


def _prove(made: Any, group: Group, key: bytes, limit_s: float) -> None:
    """Exchange proofs over each connection, by messages between two ranks, which no recorder counts."""
    deadline = monotonic() + limit_s
    works, expected = [], []
    interfaces = env.snapshot().get(IFNAME, "").split(",")  # each has its connections
    for rank in group.others():
        for tag in range(len(interfaces)):
            labels = str(group.rank), str(rank), str(tag)
            proof, found = (
                bytearray(derived(key, *labels)),
                torch.zeros(_PROOF, dtype=torch.uint8, device="cpu"),
            )
            works.append(made.recv([found], rank, tag))
            works.append(made.send([torch.frombuffer(proof, dtype=torch.uint8)], rank, tag))
            expected.append((rank, found, derived(key, str(rank), str(group.rank), str(tag))))
    for work in works:
        work.wait(timedelta(seconds=max(deadline - monotonic(), 0.001)))
    for rank, found, right in expected:
        if not hmac.compare_digest(bytes(found.tolist()), right):
            raise DistNetworkError(f"the proof of rank {rank} is wrong")


def _all_good(group: Group, store: Any, *, good: bool) -> bool:
    """Return whether all ranks of the group have received right proofs only."""
    total = store.add("proved", 1 if good else 1 + _BAD)
    if total % _BAD == group.size:
        store.set("verdict", b"1" if total == group.size else b"0")
    return _awaited(group, store, "verdict") == b"1"


class _Listening:
    """Gloo's listening sockets, which are found while a group is created.

    If it is `guarded`, the sockets accept connections only from ranks of the group.
    """

    def __init__(self, group: Group, store: Any, *, guarded: bool) -> None:
        self._group, self._store, self._guarded = group, store, guarded
        self._found: list[socket.socket] = []
        self._lock = threading.Lock()
        self._made = threading.Event()
        self.has_posted = False  # whether Gloo has posted the address of its socket

    def close_to_all(self) -> None:
        """Make Gloo's sockets accept no more connections: the needed ones exist."""
        with self._lock, suppress(OSError):
            for listener in self._found:
                admit(listener, ())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Find the sockets that are created within the block."""
        guard = threading.Thread(target=self._guard, name="samestep-gloo-guard", daemon=True)
        if self._guarded:
            guard.start()
        try:
            with self._group.base.observed(self._posted):
                yield
        finally:
            self._made.set()
            if self._guarded:
                guard.join()
            for listener in self._found:
                listener.close()

    def _posted(self, value: bytes) -> None:
        """Find the socket whose address Gloo is about to post; called before the post."""
        self.has_posted = True
        for listener in own_listeners():
            if _address(listener) not in value:
                listener.close()
                continue
            with self._lock, suppress(OSError):
                self._found.append(listener)
                if self._guarded:
                    admit(listener, ())

    def _guard(self) -> None:
        """Post the sources of this rank's connections, and admit the other ranks' posted sources."""
        own: set[Source] = set()
        of_others: dict[int, bytes] = {}
        with suppress(RuntimeError):  # the store is lost: so is the group
            while not self._made.wait(_LOOK_S):
                if more := own_attempts() - own:
                    own |= more
                    posted = b"".join(_SOURCE.pack(source.host, source.port) for source in own)
                    self._store.set(f"from/{self._group.rank}", posted)
                before = dict(of_others)
                for rank in self._group.others():
                    if self._store.check([f"from/{rank}"]):
                        of_others[rank] = self._store.get(f"from/{rank}")
                if of_others != before:
                    self._admit(b"".join(of_others.values()))

    def _admit(self, posted: bytes) -> None:
        sources = [Source(*found) for found in _SOURCE.iter_unpack(posted)]
        with self._lock, suppress(OSError):
            for listener in self._found:
                admit(listener, sources)


def _address(listener: socket.socket) -> bytes:
    """Return family and port in the form of the addresses that Gloo posts."""
    return struct.pack("=H", listener.family) + struct.pack("!H", listener.getsockname()[1])
