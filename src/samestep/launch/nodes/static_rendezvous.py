"""Extends torch's rendezvous of nodes with given numbers by a check of these numbers.

torch's own waits ten minutes in the store's constructor if a node does not arrive, or if two have
one number, and its error then counts clients without naming them.
"""

import socket
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public by its docs
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from samestep.launch.job import Nodes
from samestep.launch.nodes.roll_call import roll_call

MEET_S = 600
"""Maximum seconds between the starts of two launchers, as with torchrun."""


def handler(nodes: Nodes, run_id: str, store: Store) -> StaticTCPRendezvous:
    """Return the rendezvous handler of a job's nodes.

    Args:
        nodes: nodes of the job.
        run_id: name of the run.
        store: store that all launchers reach.
    """
    host, port = parse_rendezvous_endpoint(nodes.endpoint, default_port=-1)
    return _Static(
        store,
        master_addr=host,
        master_port=port,
        rank=nodes.rank or 0,
        world_size=nodes.count,
        run_id=run_id,
        timeout=patience_s(nodes),
    )


def patience_s(nodes: Nodes) -> float:
    """Return the maximum seconds between the starts of two launchers."""
    return float(nodes.options.get("timeout", MEET_S))


class _Static(StaticTCPRendezvous):
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
