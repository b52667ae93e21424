"""Opens a store that only the launchers of a job can use, and creates torch's rendezvous of nodes over it.

torch's c10d rendezvous unpickles its state from the store: a process that could write to it could run code.
torch's static rendezvous, of nodes with given numbers, gets a check of these numbers: its own waits ten
minutes if a node does not arrive or if two have one number, and its error names no node.
"""

import errno
import json
import socket
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
from samestep.base.polling import polls
from samestep.launch.job import Job, Nodes
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
_GRACE_S = 1.0


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
    own = _served(resolve(host), port, key, must=must) if serves else None
    store = own
    if store is None or not is_own(resolve(host)):
        # As in torch: a node that is configured to serve may not have the endpoint's address.
        store = NetworkStore(host, port, key)
        try:
            store.reach(limit_s)
        except BaseException:
            store.close()
            if own is not None:
                own.close()
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
            store,
            self.rank,
            self.world_size,
            RendezvousStoreInfo.build(self.rank, store, self.master_addr),
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
        for other in range(nodes):
            _await(store, other, nodes, timeout_s)
            there, count = json.loads(store.get(f"roll/{other}"))
            if count != nodes:
                _refuse(
                    store,
                    f"node {node} on {host} was started with --nnodes {nodes}, node {other} on {there} with "
                    f"--nnodes {count}. Give all the same number.",
                )
    except UsageError:
        if node == 0:
            Event().wait(_GRACE_S)  # the store ends with this node, and the others must read the reason
        raise


def _refuse(store: Store, why: str) -> None:
    store.set(_CLASH, why)
    raise UsageError(why)


def _await(store: Store, other: int, nodes: int, timeout_s: float) -> None:
    for _ in polls(timeout_s, most_s=0.25):
        if store.check([f"roll/{other}"]):
            return
        if store.check([_CLASH]):
            raise UsageError(store.get(_CLASH).decode())
    raise PeerLost(f"node {other} of {nodes} did not come within {timeout_s:g} s. Was it started?")
