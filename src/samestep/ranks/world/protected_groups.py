"""Protects torch's process groups: connections and objects come from ranks of this job only.

Gloo accepts the first process that connects, and requires only a small number. So each group is created in
these steps, which use the job's protected store:

1. All ranks of the group wait for each other; only then does Gloo open its listening sockets.
2. Gloo connects the ranks.
3. Each rank sends every other rank a proof over the connection itself: an HMAC of both ranks and of a random
   value, which is posted to the store for this attempt.
4. The ranks compare results. If all proofs are right, Gloo's sockets accept no more connections.

If a foreign process connected first, there is another attempt. In that attempt, Gloo's sockets accept
connections only from addresses and ports that the job's ranks have posted after their kernels sent the first
packet. A filter in the kernel restricts them, which any user may attach to a socket: a packet that it rejects
is dropped, and the other end's kernel sends it again after a second. Existing connections keep the filter
they were created with.

The messages of a group are not authenticated once the connections exist. So torch's functions for objects
(``all_gather_object`` and its relatives), which unpickle what they receive, send an HMAC behind each pickle.
"""

import ctypes
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistNetworkError, PrefixStore, Store  # type: ignore[attr-defined]

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import WorldError
from samestep.base.machine.kernel_files import text_of
from samestep.hooks import declarations
from samestep.hooks.registry import put
from samestep.ranks.rendezvous.authentication import derived
from samestep.ranks.rendezvous.gloo_interface import IFNAME
from samestep.ranks.rendezvous.job_secret import job_key
from samestep.ranks.rendezvous.network_store import NetworkStore, base_of

PROOFS_S = (2.0, 5.0, 30.0)
"""Timeouts of the proofs in seconds, by attempt; with guarded sockets there is time for slow ranks."""
_PROOF = 32  # bytes of an HMAC-SHA256
_BAD = 1 << 32  # number that a rank adds if it is connected to a foreign process; the lower half counts ranks
_LOOK_S = 0.005  # seconds between two searches for new connections: a guess, as the next number
_MOST_OF = 0.9  # fraction of the timeout; a rank that has waited longer has waited for another rank
_SOONEST_S = 0.001  # of a wait whose time is over: torch takes 0 for no limit
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

    def peers(self) -> list[int]:
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
    value: bytes = store.get(key)
    return value


def _prove(made: Any, group: Group, key: bytes, limit_s: float) -> None:
    """Exchange proofs over each connection, by messages between two ranks, which no recorder counts."""
    deadline = monotonic() + limit_s
    works, expected = [], []
    interfaces = env.snapshot().get(IFNAME, "").split(",")  # each has its connections
    for rank in group.peers():
        for tag in range(len(interfaces)):
            labels = str(group.rank), str(rank), str(tag)
            proof, received = (
                bytearray(derived(key, *labels)),
                torch.zeros(_PROOF, dtype=torch.uint8, device="cpu"),
            )
            works.append(made.recv([received], rank, tag))
            works.append(made.send([torch.frombuffer(proof, dtype=torch.uint8)], rank, tag))
            expected.append((rank, received, derived(key, str(rank), str(group.rank), str(tag))))
    for work in works:
        work.wait(timedelta(seconds=max(deadline - monotonic(), _SOONEST_S)))
    for rank, received, right in expected:
        if not hmac.compare_digest(bytes(received.tolist()), right):
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
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._made = threading.Event()
        self.has_posted = False  # whether Gloo has posted the address of its socket

    def close_to_all(self) -> None:
        """Make Gloo's sockets accept no more connections: the needed ones exist."""
        with self._lock, suppress(OSError):
            for listener in self._sockets:
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
            for listener in self._sockets:
                listener.close()

    def _posted(self, value: bytes) -> None:
        """Find the socket whose address Gloo is about to post; called before the post."""
        self.has_posted = True
        for listener in own_listeners():
            if _address(listener) not in value:
                listener.close()
                continue
            with self._lock, suppress(OSError):
                self._sockets.append(listener)
                if self._guarded:
                    admit(listener, ())

    def _guard(self) -> None:
        """Post the sources of this rank's connections, and admit the other ranks' posted sources."""
        sources: set[Source] = set()
        of_others: dict[int, bytes] = {}
        with suppress(RuntimeError):  # the store is lost: so is the group
            while not self._made.wait(_LOOK_S):
                if more := own_attempts() - sources:
                    sources |= more
                    posted = b"".join(_SOURCE.pack(source.host, source.port) for source in sources)
                    self._store.set(f"from/{self._group.rank}", posted)
                before = dict(of_others)
                for rank in self._group.peers():
                    if self._store.check([f"from/{rank}"]):
                        of_others[rank] = self._store.get(f"from/{rank}")
                if of_others != before:
                    self._admit(b"".join(of_others.values()))

    def _admit(self, posted: bytes) -> None:
        sources = [Source(*fields) for fields in _SOURCE.iter_unpack(posted)]
        with self._lock, suppress(OSError):
            for listener in self._sockets:
                admit(listener, sources)


def _address(listener: socket.socket) -> bytes:
    """Return family and port in the form of the addresses that Gloo posts."""
    return struct.pack("=H", listener.family) + struct.pack("!H", listener.getsockname()[1])


_SO_ATTACH_FILTER = 26  # Linux's number; Python's socket module lacks it
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_HALF, _LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000
_END_OF_SOURCE = {socket.AF_INET: 12, socket.AF_INET6: 20}
"""Offset of the last four bytes of a packet's source address."""
_WHOLE, _NOTHING = 0xFFFFFFFF, 0
_SYN_SENT = "02"  # state in /proc/net/tcp
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Source of a connection."""

    host: bytes  # the last four bytes of its address
    port: int  # its port


def admit(listener: socket.socket, sources: Iterable[Source]) -> None:
    """Make a listening socket accept connections from these sources only; with none, from no source.

    Raises:
        OSError: the kernel has no such filters.
    """
    program = b""
    at = _NETWORK_HEADER + _END_OF_SOURCE[socket.AddressFamily(listener.family)]
    for source in sorted(set(sources)):
        (host,) = struct.unpack("!I", source.host)
        program += _INSTRUCTION.pack(_LOAD_HALF, 0, 0, 0)  # the port, with which the TCP header begins
        program += _INSTRUCTION.pack(_JUMP_EQUAL, 0, 3, source.port)
        program += _INSTRUCTION.pack(_LOAD_WORD, 0, 0, at)
        program += _INSTRUCTION.pack(_JUMP_EQUAL, 0, 1, host)
        program += _INSTRUCTION.pack(_RETURN, 0, 0, _WHOLE)
    program += _INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def own_listeners() -> Iterator[socket.socket]:
    """Yield duplicates of this process's listening TCP sockets; the caller closes them."""
    for entry in Path("/proc/self/fd").iterdir():
        file = int(entry.name)
        if not _listens(file):
            continue
        with suppress(OSError):  # it has been closed
            listener = socket.socket(fileno=os.dup(file))
            if listener.family in _END_OF_SOURCE:
                yield listener
            else:
                listener.close()


def own_attempts() -> set[Source]:
    """Return the sources of this process's unanswered connection attempts."""
    sockets = _own_sockets()
    sources = set()
    for table in ("tcp", "tcp6"):
        for line in text_of(Path(f"/proc/self/net/{table}")).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _SYN_SENT and f"socket:[{fields[9]}]" in sockets:
                host, _, port = fields[1].partition(":")
                sources.add(Source(struct.pack("=I", int(host[-8:], 16)), int(port, 16)))
    return sources


def _own_sockets() -> dict[str, int]:
    """Return the descriptors of this process's sockets, by their names."""
    descriptors = {}
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(file.readlink())
            if target.startswith("socket:"):
                descriptors[target] = int(file.name)
    return descriptors


def _listens(file: int) -> bool:
    # Not by a socket object: with a default timeout, making one changes how the file blocks. Any other file
    # has no such option, and to ask for it is several times as fast as to read what the file is.
    value, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    got = _LIBRARY.getsockopt(
        file, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(value), ctypes.byref(size)
    )
    return got == 0 and bool(value.value)


_keys: list[bytes] = []  # key of this process's job, once it protects objects


def sealed(data: bytes, key: bytes) -> bytes:
    """Return a pickle followed by its HMAC."""
    return data + hmac.digest(key, data, "sha256")


def opened(data: bytes, key: bytes) -> bytes:
    """Return a received pickle without its HMAC, after checking it.

    Raises:
        WorldError: the pickle is not from a rank of this job.
    """
    data, proof = data[:-_PROOF], data[-_PROOF:]
    if not hmac.compare_digest(proof, hmac.digest(key, data, "sha256")):
        raise WorldError(
            "a received object is not from a rank of this job, and was not unpickled. Does every "
            "rank run under samestep, or does another program change the network's traffic? See "
            "docs/guide/security.md."
        )
    return data


def protect_objects(environment: Environment) -> None:
    """Add an HMAC to all objects that this process sends from now on, and require one of those it receives.

    Either all ranks of a job call this, or none.

    Raises:
        UsageError: there is no secret.
    """
    _keys[:] = [job_key(environment, "objects")]
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    if getattr(c10d._object_to_tensor, "__module__", "") != __name__:  # noqa: SLF001 - no public spelling
        put(declarations.PACK_OBJECT, _sealing(c10d._object_to_tensor))  # noqa: SLF001
        put(declarations.UNPACK_OBJECT, _opening(c10d._tensor_to_object))  # noqa: SLF001


def _sealing(packs: Any) -> Any:
    def pack(obj: object, device: torch.device, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
        data, _ = packs(obj, torch.device("cpu"), *options, **named)
        whole = torch.frombuffer(bytearray(sealed(data.numpy().tobytes(), _keys[0])), dtype=torch.uint8)
        message = torch.empty_like(whole, device=device).copy_(whole)  # memory that torch can resize
        return message, torch.tensor([message.numel()], dtype=torch.long, device=device)

    return pack


def _opening(unpacks: Any) -> Any:
    def unpack(tensor: Tensor, size: Any, *options: Any, **named: Any) -> Any:
        data = opened(tensor.cpu().numpy().tobytes()[: int(size)], _keys[0])
        return unpacks(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data), *options, **named)

    return unpack
