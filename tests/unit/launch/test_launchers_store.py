"""Launchers check that each node has a number of its own, and the same number of nodes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from socket import gethostname

import pytest
from torch.distributed import HashStore

from samestep.base.errors import PeerLost, UsageError
from samestep.launch.launchers_store import Verdict, Verdicts, roll_call


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


class Store:
    """A store in memory that raises, once `gone` is set, as after the end of its server."""

    def __init__(self):
        self.values = {}
        self.gone = False

    def _check(self):
        if self.gone:
            raise RuntimeError("connection closed")

    def set(self, key, value):
        self._check()
        self.values[key] = value.encode()

    def get(self, key):
        self._check()
        return self.values[key]

    def check(self, keys):
        self._check()
        return all(key in self.values for key in keys)


def verdict(node, weight=0):
    return Verdict(node=node, host=gethostname(), text="rank 3 failed", code=7, weight=weight)


@pytest.fixture
def store():
    return Store()


def of(store, node, nodes=2, restarts=0, silent_s=5.0):
    return Verdicts(store, restarts=restarts, node=node, nodes=nodes, silent_s=silent_s)


def beside(act):
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_node_that_posts_a_verdict_waits_until_the_others_have_read_it(store):
    posting = beside(lambda: of(store, 1).post("rank 3 failed", code=7))
    while (read := of(store, 0).worst()) is None:
        assert posting.is_alive()
    assert read == verdict(1)
    posting.join(timeout=3)
    assert not posting.is_alive()


def test_the_verdict_closest_to_a_cause_is_preferred(store):
    first, second = of(store, 0, 3), of(store, 1, 3)
    posting = [
        beside(lambda: first.post("rank 3 failed", code=7, weight=2)),
        beside(lambda: second.post("rank 3 failed", code=7, weight=0)),
    ]
    last = of(store, 2, 3)
    while len([key for key in list(store.values) if "failed" in key]) < 2:
        pass
    assert last.worst() == verdict(1, 0)
    assert first.await_cause(2) == verdict(1, 0)
    assert second.worst() == verdict(0, 2)
    for thread in posting:
        thread.join(timeout=10)


def test_verdicts_of_another_restart_are_not_read(store):
    posting = beside(lambda: of(store, 1, restarts=1).post("rank 3 failed", code=7))
    while not store.values:
        pass
    assert of(store, 0, restarts=2).worst() is None
    of(store, 0, restarts=1).worst()
    posting.join(timeout=3)


def test_nodes_that_are_done_wait_for_each_other(store):
    nodes = [of(store, node) for node in range(2)]
    found = []

    def end(one):
        one.done()
        found.append(one.await_all(end=lambda: False))

    for thread in [beside(lambda one=one: end(one)) for one in nodes]:
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert found == [None, None]


def test_the_wait_at_the_end_stops_at_a_verdict_a_signal_or_a_lost_store(store):
    one, other = of(store, 0), of(store, 1)
    one.done()
    assert one.await_all(end=lambda: True) is None
    posting = beside(lambda: other.post("rank 3 failed", code=7))
    assert one.await_all(end=lambda: False) == verdict(1)
    posting.join(timeout=3)
    store.gone = True
    with pytest.raises(RuntimeError):
        one.await_all(end=lambda: False)
    other.post("rank 3 failed", code=7)  # no node is left to read it
    assert other.poll() is None


def test_a_node_is_waited_for_while_it_posts_and_lost_once_it_is_silent(store):
    one, other = of(store, 0, silent_s=0.4), of(store, 1)
    over = threading.Event()

    def beat():
        for _ in range(8):
            other._last_read = 0.0
            other.poll()
            over.wait(0.1)

    beating = beside(beat)
    with pytest.raises(PeerLost):
        one.await_all(end=lambda: False)
    assert not beating.is_alive()
