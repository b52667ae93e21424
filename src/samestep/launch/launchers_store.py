"""Opens a store that only the launchers of a job can use, for the rendezvous of nodes and for their verdicts.

torch's c10d rendezvous unpickles its state from the store: a process that could write to it could run code.
torch's static rendezvous, of nodes with given numbers, gets a check of these numbers: its own waits ten
minutes if a node does not arrive or if two have one number, and its error names no node.

A node whose workers failed for good, or that a signal has ended, posts a verdict; all other nodes read it
while their workers run and while they wait for each other at the end, and end too.
"""

import errno
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from threading import Event
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public by its docs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from samestep.base.errors import PeerLost, UsageError
from samestep.base.polling import holds_within, polls
from samestep.launch.job import Job, Nodes
from samestep.launch.local.local_backend import Verdict
from samestep.launch.plan import host_and_port
from samestep.ranks.rendezvous.authentication import derived
from samestep.ranks.rendezvous.endpoint import resolve
from samestep.ranks.rendezvous.gloo_interface import address_towards, is_own
from samestep.ranks.rendezvous.network_store import NetworkStore, serve

_READ_S = 60  # seconds that c10d's rendezvous waits for the store, as with torchrun
_IMPATIENT = {"last_call_timeout": 5, "keep_alive_interval": 3, "keep_alive_max_attempt": 3}
"""Seconds that a rendezvous waits for more than the minimum of nodes, and after which a silent node is lost.

torch's 30 and 15 would be most of the time that a run loses with a node."""

_YES = ("1", "true", "t", "yes", "y")
_MEET_S = 600  # maximum seconds between the starts of two launchers, as with torchrun
_CLASH = "roll/clash"
_GRACE_S = 1.0  # seconds that node 0 serves the store after a refusal
_POLL_S = 0.1  # seconds between reads of the store at the end of a run
_CAUSE_S = 2.0  # seconds to wait for another node's verdict that is closer to a cause
_READ_EVERY_S = 0.5  # seconds between reads while workers run: all nodes send them to one host
_SEEN_WITHIN_S = 5.0
"""Seconds that a node stays until the others have read its verdict: it may serve the store."""
_SILENT_S = 30.0  # seconds that a node that is done waits for a node that posts nothing new


def open_launchers_store(nodes: Nodes, secret: bytes) -> NetworkStore:
    """Return the store for the rendezvous of the launchers of a job with this secret.

    Raises:
        OSError: this node must serve the store, and cannot.
        PeerLost: the node that serves it does not answer, or does not have the secret.
    """
    key = derived(secret, "launchers")
    host, port = host_and_port(nodes.endpoint)
    if nodes.backend == "static":
        serves, must, limit_s = not nodes.rank, True, _patience_s(nodes)
    else:
        is_host = nodes.options.get("is_host")
        must = is_host is not None or nodes.rank is not None
        if is_host is not None:
            serves = is_host.lower() in _YES
        else:
            serves = nodes.rank == 0 if nodes.rank is not None else is_own(resolve(host))
        limit_s = float(nodes.options.get("read_timeout", _READ_S))
    served = _served(resolve(host), port, key, must=must) if serves else None
    store = served
    if store is None or not is_own(resolve(host)):
        # As in torch: a node that is configured to serve may not have the endpoint's address.
        store = NetworkStore(host, port, key)
        try:
            store.reach(limit_s)
        except BaseException:
            store.close()
            if served is not None:
                served.close()
            raise
    store.set_timeout(timedelta(seconds=limit_s))
    return store


def _served(ip: str, port: int, key: bytes, *, must: bool) -> NetworkStore | None:
    """Return the store that this node serves; None if another launcher on this host serves it."""
    try:
        return serve(ip, port, key, everywhere=address_towards(ip) is not None)
    except OSError as error:
        if must or error.errno != errno.EADDRINUSE:
            raise
        return None


def rendezvous_of(job: Job, nodes: Nodes, store: NetworkStore) -> RendezvousHandler:
    """Return torch's rendezvous of the nodes, over the store that all launchers reach."""
    host, port = host_and_port(nodes.endpoint)
    if nodes.backend == "static":
        return _StaticRendezvous(
            store,
            master_addr=host,
            master_port=port,
            rank=nodes.rank or 0,
            world_size=nodes.count,
            run_id=job.run_id,
            timeout=_patience_s(nodes),
        )
    options: dict[str, Any] = dict(nodes.options)
    if nodes.least is not None:
        options = _IMPATIENT | options
    parameters = RendezvousParameters(
        backend=nodes.backend,
        endpoint=nodes.endpoint,
        local_addr=address_towards(host),  # otherwise its name, which the others may not resolve
        run_id=job.run_id,
        min_nodes=nodes.least or nodes.count,
        max_nodes=nodes.count,
        **options,
    )
    return create_handler(store, C10dRendezvousBackend(store, job.run_id), parameters)


def _patience_s(nodes: Nodes) -> float:
    """Return the maximum seconds between the starts of two launchers of nodes with given numbers."""
    return float(nodes.options.get("timeout", _MEET_S))


class _StaticRendezvous(StaticTCPRendezvous):
    """Torch's static rendezvous over the launchers' store of this job."""

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(**options)
        self._store: Store = store

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the launchers' store: rank 0 serves one to them, as on one host."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return once all nodes have arrived; see torch's."""
        store = PrefixStore(self.run_id, self._store)
        roll_call(
            store,
            self.rank,
            self.world_size,
            host=socket.gethostname(),
            timeout_s=self.timeout.total_seconds(),
        )
        return RendezvousInfo(
            store, self.rank, self.world_size, RendezvousStoreInfo.build(self.rank, store, self.master_addr)
        )


def roll_call(store: Store, node: int, nodes: int, *, host: str, timeout_s: float) -> None:
    """Return once each of `nodes` launchers has posted its number, and no two have posted the same.

    Node 0, whose store this is, waits for each other one for `timeout_s`; so do the others.

    Raises:
        UsageError: two nodes have one number, or different numbers of nodes; all of them raise.
        PeerLost: a node did not arrive.
    """
    try:
        if store.add(f"roll/{node}/taken", 1) > 1:
            first, _ = json.loads(store.get(f"roll/{node}"))
            _refuse(
                store,
                f"two launchers were started as node {node} of {nodes}, on {first} and on {host}. Give "
                f"each a different --node-rank, 0 .. {nodes - 1}.",
            )
        store.set(f"roll/{node}", json.dumps([host, nodes]))
        for number in range(nodes):
            _await(store, number, nodes, timeout_s)
            peer, count = json.loads(store.get(f"roll/{number}"))
            if count != nodes:
                _refuse(
                    store,
                    f"node {node} on {host} was started with --nnodes {nodes}, node {number} on {peer} with "
                    f"--nnodes {count}. Give all the same number.",
                )
    except UsageError:
        if node == 0:
            Event().wait(_GRACE_S)  # the store ends with this node, and the others must read the reason
        raise


def _refuse(store: Store, why: str) -> None:
    store.set(_CLASH, why)
    raise UsageError(why)


def _await(store: Store, node: int, nodes: int, timeout_s: float) -> None:
    for _ in polls(timeout_s, most_s=0.25):
        if store.check([f"roll/{node}"]):
            return
        if store.check([_CLASH]):
            raise UsageError(store.get(_CLASH).decode())
    raise PeerLost(f"node {node} of {nodes} did not come within {timeout_s:g} s. Was it started?")


class Verdicts:
    """One node's access to the verdicts of one round of workers.

    Each round has separate keys. A node that is done waits `silent_s` for a node that posts nothing new.
    """

    def __init__(
        self, store: Store, *, restarts: int, node: int, nodes: int, silent_s: float = _SILENT_S
    ) -> None:
        self._silent_s = silent_s
        self._store, self._node, self._nodes = store, node, nodes
        self._other_nodes = [number for number in range(nodes) if number != node]
        self._prefix = f"samestep/end/{restarts}"
        self._last_read = 0.0
        self._beat = 0

    def post(self, text: str, *, code: int, weight: int = 0) -> None:
        """Post a verdict of this node, and wait, up to a limit, until the others have read it."""
        verdict = Verdict(node=self._node, host=socket.gethostname(), text=text, code=code, weight=weight)
        with suppress(RuntimeError):  # the store is gone: so is the node that served it
            self._store.set(self._key("failed", self._node), json.dumps(asdict(verdict)))
            self._await("seen", _SEEN_WITHIN_S)

    def worst(self) -> Verdict | None:
        """Return the verdict of another node that is closest to a cause; None if none is posted."""
        posted = self._nodes_with("failed")
        verdicts = [Verdict(**json.loads(self._store.get(self._key("failed", node)))) for node in posted]
        if not verdicts:
            return None
        self._store.set(self._key("seen", self._node), "")
        return min(verdicts, key=lambda verdict: verdict.weight)

    def poll(self) -> Verdict | None:
        """Return the same, but only at intervals; post to the others that this node is alive."""
        now = time.monotonic()
        if now - self._last_read < _READ_EVERY_S:
            return None
        self._last_read = now
        self._beat += 1
        try:
            self._store.set(self._key("beat", self._node), str(self._beat))
            return self.worst()
        except RuntimeError:  # the workers, or the next rendezvous, detect that
            return None

    def await_cause(self, than: int) -> Verdict | None:
        """Return another node's verdict that is closer to a cause than `than`, if one is posted in time."""
        with suppress(RuntimeError):
            for _ in polls(_CAUSE_S, least_s=_POLL_S):
                verdict = self.worst()
                if verdict is not None and verdict.weight < than:
                    return verdict
        return None

    def done(self) -> None:
        """Post that this node's workers have succeeded."""
        with suppress(RuntimeError):
            self._store.set(self._key("done", self._node), "")

    def await_all(self, end: Callable[[], bool]) -> Verdict | None:
        """Return when all nodes are done or `end` returns True, or the verdict of one that has failed.

        Raises:
            RuntimeError: the store is gone, and with it the node that served it, before all were done.
            PeerLost: a node that is not done has posted nothing for `silent_s`.
        """
        beats, since = self._beats(), time.monotonic()
        while not self._have_all("done"):
            if (verdict := self.worst()) is not None or end():
                return verdict
            if (now := self._beats()) != beats:
                beats, since = now, time.monotonic()
            if time.monotonic() - since > self._silent_s:
                missing = sorted(set(self._other_nodes) - set(self._nodes_with("done")))
                raise PeerLost(
                    f"node {missing[0] if missing else '?'} of {self._nodes} did not report its end, and has "
                    f"posted nothing for {self._silent_s:g} s. Has its launcher been killed?"
                )
            time.sleep(_POLL_S)
        with suppress(RuntimeError):
            self._store.set(self._key("left", self._node), "")
            self._await("left", _SEEN_WITHIN_S)
        return None

    def _await(self, event: str, timeout_s: float) -> None:
        holds_within(lambda: self._have_all(event), timeout_s, least_s=_POLL_S)

    def _have_all(self, event: str) -> bool:
        return self._nodes_with(event) == self._other_nodes

    def _nodes_with(self, event: str) -> list[int]:
        """Return the other nodes that have posted an event."""
        return [node for node in self._other_nodes if self._store.check([self._key(event, node)])]

    def _beats(self) -> list[bytes]:
        return [self._store.get(self._key("beat", node)) for node in self._nodes_with("beat")]

    def _key(self, event: str, node: int) -> str:
        return f"{self._prefix}/{event}/{node}"
