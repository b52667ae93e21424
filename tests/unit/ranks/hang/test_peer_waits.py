"""The error of a failed wait names its cause, even if the store does not answer."""

import pytest

from samestep.base.errors import OutOfStep, PeerLost
from samestep.base.place import Place
from samestep.ranks.hang import peer_waits
from samestep.ranks.hang.current_call import call_of_main_thread
from samestep.ranks.hang.peer_waits import PeerWaits
from samestep.ranks.hang.rank_status import RankStatus

PLACE = Place(rank=1, size=2, launcher="test")


class Monitor:
    """A monitor with given statuses, whose store answers or does not."""

    def __init__(self, statuses, *, answers):
        self._statuses, self._answers = statuses, answers
        self.given_up, self.store = None, self

    def give_up(self, call):
        self.given_up = call
        return self._answers

    def statuses(self):
        return self._statuses

    def circle(self):
        return next((status.circle for status in self._statuses.values()), "")

    def refresh(self):
        return self._answers

    def sever(self):
        pass


@pytest.fixture
def waiting(monkeypatch):
    """Return a function that makes the waits of a rank."""
    monkeypatch.setattr(peer_waits, "GRACE_S", 0.0)

    def made(statuses=None, *, answers=True):
        monitor = Monitor(statuses or {}, answers=answers)
        monkeypatch.setattr(PeerWaits, "_started", lambda _: monitor)
        return PeerWaits(PLACE)

    return made


def test_without_an_answer_of_the_store_the_error_names_the_awaited_rank(waiting):
    waits = waiting(answers=False)
    call = waits.begin("recv", 0)

    with pytest.raises(PeerLost, match=r"rank 0 is lost to rank 1, or waits itself .*: Timed out"):
        waits.explain(call, RuntimeError("Timed out waiting 3000ms for recv operation to complete"))


def test_an_error_that_no_other_rank_has_caused_is_not_replaced(waiting):
    waits = waiting()
    waits.explain(waits.begin("all_reduce"), RuntimeError("Invalid scalar type"))


def test_ranks_that_wait_for_each_other_are_out_of_step(waiting):
    waits = waiting({0: RankStatus(generation=0, beat=1, circle="rank 0 sends to rank 1, ...")})

    with pytest.raises(OutOfStep, match="rank 0 sends to rank 1"):
        waits.explain(waits.begin("send", 0), RuntimeError("Connection closed by peer"))


def test_a_message_that_cannot_be_started_is_explained_and_no_wait_remains(waiting):
    waits = waiting()

    with pytest.raises(PeerLost, match=r"no rank is missing|lost to"):
        waits.explain_start("exchange", 0, RuntimeError("Broken pipe"))
    assert call_of_main_thread() is None
