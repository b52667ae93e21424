"""A rank that gives up says so, also where nobody answers."""

import threading

import pytest

from samestep.base.errors import PeerLost
from samestep.base.place import Place
from samestep.ranks.world import deadlock
from samestep.ranks.world.deadlock import Blocked


class Silent:
    """A store whose server was stopped."""

    def __init__(self):
        self.asked, self.gone = threading.Event(), threading.Event()

    def check(self, *_):
        self.asked.set()
        self.gone.wait()
        raise RuntimeError("Connection reset by peer")

    get = set = check


@pytest.fixture
def store(monkeypatch):
    silent, before = Silent(), set(threading.enumerate())
    monkeypatch.setattr(deadlock, "_get_default_store", lambda: silent)
    monkeypatch.setattr(deadlock, "LOOK_S", 0.001)
    monkeypatch.setattr(deadlock, "GRACE_S", 0.01)
    yield silent
    silent.gone.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_a_rank_whose_store_does_not_answer_says_whom_it_waited_for(store):
    waiting = Blocked(Place(rank=1, size=2, launcher="test"))
    wait = waiting.begin("recv", 0)
    store.asked.wait()

    with pytest.raises(PeerLost, match=r"rank 0 is lost to rank 1, or waits itself .*: Timed out"):
        waiting.explain(wait, RuntimeError("Timed out waiting 3000ms for recv operation to complete"))
    waiting.close()


def test_what_is_not_about_others_is_not_explained(store):
    waiting = Blocked(Place(rank=1, size=2, launcher="test"))
    waiting.explain(waiting.begin("all_reduce"), RuntimeError("Invalid scalar type"))
    waiting.close()
