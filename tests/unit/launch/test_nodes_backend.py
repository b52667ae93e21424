import errno
import socket
from contextlib import closing

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from samestep.base.errors import UsageError
from samestep.launch.job import Nodes
from samestep.launch.launchers_store import open_launchers_store
from samestep.launch.nodes_backend import _no_rendezvous, _opened_store
from samestep.launch.plan import endpoint

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


SECRET = b"s" * 32


@pytest.fixture
def bound():
    """Return a socket bound to a port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one


@pytest.fixture
def free():
    """Return a socket bound to a port on which another socket can listen."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        yield one


def nodes(bound, **more):
    return Nodes(count=2, endpoint=endpoint("127.0.0.1", bound.getsockname()[1]), **more)


@pytest.mark.parametrize(
    ("backend", "option"), [("c10d", "read_timeout"), ("static", "timeout")], ids=["c10d", "static"]
)
def test_an_endpoint_without_a_launcher_is_refused_in_time(bound, backend, option):
    asked = nodes(bound, rank=1, backend=backend, options={option: "0.05"})

    with pytest.raises(UsageError, match=option) as caught:
        _opened_store(asked, SECRET)

    assert caught.value.exit_code == 2
    assert asked.endpoint in str(caught.value)


def test_a_server_without_the_secret_is_refused(bound):
    bound.listen()
    asked = nodes(bound, rank=1, options={"timeout": "0.05"})

    with pytest.raises(UsageError, match="timeout") as caught:
        _opened_store(asked, SECRET)

    assert asked.endpoint in str(caught.value)


def test_a_launcher_connects_to_the_one_that_serves(free):
    with closing(open_launchers_store(nodes(free, rank=0), SECRET)) as served:
        served.set("key", b"value")

        with closing(_opened_store(nodes(free, rank=1), SECRET)) as found:
            assert found.get("key") == b"value"


@pytest.mark.parametrize(
    "more",
    [
        {"rank": 0},
        {"rank": None},
        {"rank": 0, "backend": "c10d"},
        {"backend": "c10d"},  # the address is this host's own
        {"rank": 1, "backend": "c10d", "options": {"is_host": "yes"}},
    ],
)
def test_the_node_that_serves_does_not_wait_for_others(free, more):
    with closing(_opened_store(nodes(free, **more), SECRET)) as store:
        assert store.add("key", 1) == 1


def test_the_message_leaves_out_the_frames_of_torch():
    message = _no_rendezvous(
        DistNetworkError("timed out after 5 ms.\nException raised from f at x.cpp:1\n"), NODES
    )

    assert "timed out after 5 ms" in message
    assert "x.cpp" not in message
