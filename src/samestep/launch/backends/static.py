"""Nodes whose numbers are given: torch's rendezvous for them, with a roll call.

torch's own waits ten minutes in the store's constructor where a node does not come, or where two come with
one number, and then counts clients without a name.
"""

import socket

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public by its docs
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from samestep.launch.backends.roll_call import roll_call
from samestep.launch.job import Nodes

MEET_S = 600
"""How much later than another a launcher may start, as with torchrun."""


def handler(nodes: Nodes, run_id: str) -> StaticTCPRendezvous:
    """Return what the nodes of a job meet through."""
    host, port = parse_rendezvous_endpoint(nodes.endpoint, default_port=-1)
    return _Static(
        master_addr=host,
        master_port=port,
        rank=nodes.rank or 0,
        world_size=nodes.count,
        run_id=run_id,
        timeout=int(nodes.options.get("timeout", MEET_S)),
    )


class _Static(StaticTCPRendezvous):
    """See torch's."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Return once all nodes are there; see torch's."""
        self._store = self._store or TCPStore(
            self.master_addr,
            self.master_port,
            self.world_size,
            self.rank == 0,
            self.timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
        roll_call(
            PrefixStore(self.run_id, self._store),
            self.rank,
            self.world_size,
            host=socket.gethostname(),
            timeout_s=self.timeout.total_seconds(),
        )
        return super().next_rendezvous()
