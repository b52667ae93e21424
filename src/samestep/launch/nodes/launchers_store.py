"""Opens a store that only the launchers of a job can use, and creates torch's rendezvous over it.

torch's c10d rendezvous unpickles its state from the store: a process that could write to it could run code.
"""

import errno
from datetime import timedelta
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from samestep.launch.job import Job, Nodes
from samestep.launch.nodes import static_rendezvous
from samestep.launch.plan import host_and_port
from samestep.ranks.rendezvous.authentication import derived
from samestep.ranks.rendezvous.endpoint import resolve
from samestep.ranks.rendezvous.gloo_interface import address_towards, is_own
from samestep.ranks.rendezvous.network_store import NetworkStore, serve

_READ_S = 60
"""Seconds that c10d's rendezvous waits for the store, as with torchrun."""
_IMPATIENT = {"last_call_timeout": 5, "keep_alive_interval": 3, "keep_alive_max_attempt": 3}
"""Seconds that a rendezvous waits for more than the minimum of nodes, and after which a silent node is lost.

torch's 30 and 15 would be most of the time that a run loses with a node."""
_YES = ("1", "true", "t", "yes", "y")


def open_launchers_store(nodes: Nodes, secret: bytes) -> NetworkStore:
    """Return the store for the rendezvous of a job's launchers.

    Args:
        nodes: nodes of the job.
        secret: secret of the job.

    Raises:
        OSError: this node must serve the store, and cannot.
        PeerLost: the node that serves it does not answer, or does not have the secret.
    """
    key = derived(secret, "launchers")
    host, port = host_and_port(nodes.endpoint)
    if nodes.backend == "static":
        serves, must, limit_s = not nodes.rank, True, static_rendezvous.patience_s(nodes)
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
    """Return torch's rendezvous of the nodes, over this store.

    Args:
        job: the job, whose name is the run's.
        nodes: nodes of the job.
        store: store that all launchers reach.
    """
    if nodes.backend == "static":
        return static_rendezvous.handler(nodes, job.run_id, store)
    options: dict[str, Any] = dict(nodes.options)
    if nodes.least is not None:
        options = _IMPATIENT | options
    host, _ = host_and_port(nodes.endpoint)
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
