"""Nodes whose numbers are given: torch's rendezvous for them, with a roll call.

torch's own waits ten minutes in the store's constructor where a node does not come, or where two come with
one number, and then counts clients without a name.
"""

import socket
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public by its docs
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from samestep.launch.backends.roll_call import roll_call
from samestep.launch.job import Nodes

MEET_S = 600
"""How much later than another a launcher may start, as with torchrun."""


def handler(nodes: Nodes, run_id: str, store: Store) -> StaticTCPRendezvous:
    """Return what the nodes of a job meet through.

    Args:
        nodes: of the job.
        run_id: names the run.
        store: which all launchers reach.
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
    """Return how much later than another a launcher may start, in seconds."""
    return float(nodes.options.get("timeout", MEET_S))


class _Static(StaticTCPRendezvous):
    """See torch's; the launchers' store is ours."""

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(**options)
        self._store: Store = store

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the launchers' store: rank 0 serves one to them, as on one host."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return once all nodes are there; see torch's."""
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
