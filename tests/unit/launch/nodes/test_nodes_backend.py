import errno

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from samestep.launch.job import Nodes
from samestep.launch.nodes.nodes_backend import _no_rendezvous

NODES = Nodes(count=2, endpoint="node0:1234")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RendezvousClosedError(), "the run at node0:1234 has ended"),
        (RendezvousTimeoutError("timed out"), "rendezvous of 2 nodes at node0:1234"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "rendezvous of 2 nodes at node0:1234"),
        (DistNetworkError("failed to listen ... EADDRINUSE ..."), "another port"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "another port"),
        (DistNetworkError("socket: Too many open files"), "could not take part"),
        (OSError(errno.EMFILE, "Too many open files"), "could not take part"),
        (PermissionError(errno.EACCES, "no"), "could not take part"),
    ],
)
def test_the_message_distinguishes_a_failed_rendezvous_from_a_local_error(error, words):
    assert words in _no_rendezvous(error, NODES)
