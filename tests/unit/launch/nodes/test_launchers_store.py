"""Launchers check that each node has a number of its own, and the same number of nodes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch.distributed import HashStore

from samestep.base.errors import PeerLost, UsageError
from samestep.launch.nodes.launchers_store import roll_call


def answers(*nodes, timeout_s=30):
    """Call the roll for each ``(number, of, host)`` at the same time; return the error of each."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=30))

    def answer(node, of, host):
        try:
            roll_call(store, node, of, host=host, timeout_s=timeout_s)
        except (UsageError, PeerLost) as error:
            return error
        return None

    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: answer(*node), nodes))


def test_a_complete_set_of_nodes_raises_no_error():
    assert answers((0, 3, "a"), (1, 3, "b"), (2, 3, "c")) == [None] * 3


def test_two_nodes_with_one_number_both_raise_an_error():
    for error in answers((0, 3, "a"), (1, 3, "b"), (1, 3, "c")):
        assert isinstance(error, UsageError)
        assert "node 1 of 3" in str(error)
        assert "on b and on c" in str(error) or "on c and on b" in str(error)
        assert "--node-rank, 0 .. 2" in str(error)


def test_different_numbers_of_nodes_are_an_error_on_all_nodes():
    errors = answers((0, 2, "a"), (1, 3, "b"))

    assert all(isinstance(error, UsageError) for error in errors)
    assert any("--nnodes 2" in str(error) and "--nnodes 3" in str(error) for error in errors)


def test_a_node_that_does_not_arrive_is_named():
    (error,) = answers((0, 2, "a"), timeout_s=0)
    assert isinstance(error, PeerLost)
    assert "node 1 of 2 did not come within 0 s" in str(error)
