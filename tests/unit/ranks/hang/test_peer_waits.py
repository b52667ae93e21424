"""The error of a failed wait names its cause, even if the store does not answer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from samestep.base.errors import OutOfStep, PeerLost
from samestep.base.place import Place
from samestep.ranks.hang import peer_waits
from samestep.ranks.hang.current_call import CallRecord, call_of_main_thread
from samestep.ranks.hang.peer_waits import (
    Loss,
    PeerMonitor,
    PeerWaits,
    describe_circle,
    describe_loss,
    find_lost,
    waiting_ranks,
)
from samestep.ranks.hang.rank_status import RankStatus, Wait

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


def wait(peer, op="exchange"):
    """Return a wait for one rank, or for all in a collective."""
    if peer is None:
        return Wait(op="all_reduce", seq=4, group="0", ranks=(0, 1, 2), age_s=1.0)
    return Wait(op=op, seq=None, group="", ranks=(peer,), age_s=1.0)


def status(peer, beat=1, **fields):
    return RankStatus(generation=0, beat=beat, wait=wait(peer), **fields)


def test_the_rank_at_the_end_of_a_chain_of_waits_is_lost():
    found = find_lost(3, 4, {0: wait(1), 2: wait(1), 3: wait(2)})

    assert found == Loss(missing=(1,), way=(3, 2, 1))
    assert describe_loss(found, {}, "timed out") == (
        "rank 1 is lost to rank 3 (rank 3 waited for rank 2, rank 2 for rank 1): timed out"
    )


def test_a_neighbor_that_does_not_wait_is_lost():
    found = find_lost(0, 2, {0: wait(1)})

    assert describe_loss(found, {}, "Connection closed") == "rank 1 is lost to rank 0: Connection closed"


def test_the_last_line_of_a_lost_rank_is_reported():
    found = find_lost(0, 2, {0: wait(1)})
    statuses = {1: RankStatus(generation=0, beat=1, line="train.py:7: sleep(9)")}

    assert describe_loss(found, statuses, "closed") == (
        "rank 1 is lost to rank 0 (rank 1 was last at train.py:7: sleep(9)): closed"
    )


def test_all_ranks_that_do_not_wait_in_a_collective_are_lost():
    found = find_lost(0, 5, {0: wait(None), 2: wait(None)})

    assert found.missing == (1, 3, 4)
    assert describe_loss(found, {}, "closed") == "ranks 1, 3-4 are lost to rank 0: closed"


def test_ranks_missing_in_the_collective_of_the_awaited_rank_are_lost():
    assert find_lost(0, 3, {0: wait(1), 1: wait(None)}).missing == (2,)


@pytest.mark.parametrize("waits", [{0: wait(1), 1: wait(0)}, {0: wait(None), 1: wait(None)}])
def test_no_rank_is_lost_if_all_ranks_wait(waits):
    found = find_lost(0, 2, waits)

    assert found.missing == ()
    assert "though no rank is missing" in describe_loss(found, {}, "timed out")


def test_a_rank_counts_as_waiting_if_its_status_changes_or_it_has_given_up():
    before = {0: status(1, 3), 1: status(2, 5), 2: status(0, 2, gave_up=True)}
    running = RankStatus(generation=0, beat=9)
    after = {
        0: status(1, 4),
        1: status(2, 5),
        2: status(0, 2, gave_up=True),
        3: status(0, 1),
        4: running,
    }

    assert sorted(waiting_ranks(before, after)) == [0, 2, 3]


def test_a_cycle_of_waits_is_described_by_its_messages():
    waits = {0: wait(1, "send"), 1: wait(0, "recv")}

    assert describe_circle([0, 1], waits) == "rank 0 sends to rank 1, rank 1 receives from rank 0"


class CircleMonitor(PeerMonitor):
    """A monitor of rank 1, whose statuses are given."""

    def __init__(self):
        super().__init__(PLACE, SimpleNamespace(refresh=lambda: True), CallRecord(), [])

    def statuses(self):
        return self.given

    def post(self, passed_s=0.0):
        pass

    def see(self, beat):
        alone = {rank: replace(wait(1 - rank, "send"), alone=True, number=3) for rank in (0, 1)}
        self.given = {rank: RankStatus(generation=0, beat=beat, wait=alone[rank]) for rank in alone}
        self.examine(self.given[1])
        return self.sampler.circle


def test_ranks_wait_for_each_other_if_later_statuses_of_all_show_it():
    """Only this finds one status that is read twice, though the ranks may have gone on since."""
    monitor = CircleMonitor()
    assert [bool(monitor.see(beat)) for beat in (5, 5, 6)] == [False, False, True]
