"""Hangs are detected from the statuses of all ranks."""

import re

import pytest

from samestep.ranks.hang.detection import Advice, describe, ended_before, find_circle, find_hang
from samestep.ranks.hang.rank_status import RankStatus, Wait, parse_status

ADVICE = Advice(diverged="Go together.", steps="Count.", slow="Be patient.")


def wait(seq, *, op="all_reduce", age_s=60.0, ranks=(0, 1, 2)):
    return Wait(op=op, seq=seq, group="0", ranks=ranks, age_s=age_s)


def status(entered, wait=None, *, state="running", line="train.py:7: sleep(9)"):
    return RankStatus(
        generation=0, beat=1, state=state, line=line, entered={"0": entered}, has_joined=True, wait=wait
    )


def hang_of(statuses, limit_s=60.0):
    return find_hang(statuses, 3, limit_s=limit_s, gone_s=2.0)


def test_a_rank_that_does_not_arrive_is_missing():
    hang = hang_of({0: status(5, wait(5)), 1: status(4), 2: status(5, wait(5, age_s=10.0))})

    assert (hang.missing, hang.waiting) == ((1,), (0, 2))


def test_no_rank_is_missing_before_the_timeout():
    assert hang_of({0: status(5, wait(5, age_s=59.0)), 1: status(4), 2: status(4)}) is None


def test_a_rank_with_an_ended_script_is_missing_after_a_shorter_time():
    short = wait(5, age_s=2.0)

    assert hang_of({0: status(5, short), 1: status(4), 2: status(5, short)}) is None
    hang = hang_of({0: status(5, short), 1: status(4, state="ended"), 2: status(5, short)})
    assert hang.missing == (1,)


def test_ranks_that_wait_in_another_group_are_not_missing():
    elsewhere = Wait(op="broadcast", seq=3, group="1", ranks=(1, 2), age_s=70.0)
    hang = hang_of({0: status(5, wait(5)), 1: status(4, elsewhere), 2: status(4)})

    assert hang.missing == (2,)


def test_a_collective_or_rendezvous_that_all_ranks_have_called_is_no_hang():
    slow = wait(5, age_s=600.0)

    rendezvous = Wait(op="init_process_group", seq=None, group="", ranks=(), age_s=600.0)

    assert hang_of(dict.fromkeys(range(3), status(5, slow))) is None
    assert hang_of(dict.fromkeys(range(3), status(0, rendezvous))) is None


def test_different_collectives_with_one_number_are_a_hang():
    other = wait(5, op="all_gather")
    hang = hang_of({0: status(5, wait(5)), 1: status(5, other), 2: status(5, other)})

    assert hang.missing == ()
    text = describe(hang, {0: status(5, wait(5)), 1: status(5, other)}, 2, quiet={}, advice=ADVICE).text
    assert " 60 s" in text.splitlines()[0]
    assert text.splitlines()[-1] == ADVICE.diverged


def test_a_hang_of_ranks_that_wait_for_each_other_in_two_groups_has_no_missing_rank():
    other = Wait(op="barrier", seq=3, group="1", ranks=(0, 1, 2), age_s=2.0)
    hang = hang_of({0: status(5, wait(5)), 1: status(4, other), 2: status(4, other)})

    assert (hang.missing, hang.waiting) == ((), (0,))


def test_a_rank_without_a_status_is_missing():
    assert hang_of({0: status(5, wait(5)), 2: status(5, wait(5))}).missing == (1,)


def test_a_rank_outside_of_the_group_is_not_missing():
    pair = wait(5, ranks=(0, 1))

    assert hang_of({0: status(5, pair), 1: status(5, pair), 2: status(1)}) is None


def test_the_report_has_a_line_for_ranks_in_the_same_state_and_marks_a_stopped_rank():
    statuses = {
        0: status(5, wait(5), line="train.py:8: reduce()"),
        1: status(4),
        2: status(5, wait(5), line="train.py:8: reduce()"),
    }
    text = describe(hang_of(statuses), statuses, 3, quiet={1: "stopped"}, advice=ADVICE).text

    head, waiting, stopped, advice = text.splitlines()
    assert re.search(r"rank 1 of 3 .*all_reduce #5, .*ranks 0, 2 .* 60 s", head)
    assert re.match(r"  ranks 0, 2: .*all_reduce #5 at train\.py:8: reduce\(\)$", waiting)
    assert re.match(r"  rank 1: stopped, .*train\.py:7: sleep\(9\)$", stopped)
    assert "SIGSTOP" in advice


def test_ranks_that_ended_before_a_collective_are_found():
    last = wait(5, age_s=0.0)
    statuses = {0: status(5), 1: status(4, state="ended"), 2: status(5, state="ended")}

    assert ended_before(statuses, last) == (1,)
    assert ended_before({**statuses, 1: status(4, state="failed")}, last) == ()


def test_a_status_survives_serialization():
    one = status(5, wait(5))

    assert parse_status(one.to_bytes()) == one


def message(op, peer):
    return status(3, Wait(op=op, seq=None, group="", ranks=(peer,), age_s=60.0))


@pytest.mark.parametrize("op", ["recv", "send", "exchange"])
def test_a_chain_of_waits_that_ends_at_a_running_rank_is_no_cycle(op):
    hang = hang_of({0: message(op, 1), 1: message(op, 2), 2: status(3)})

    assert (hang.missing, hang.wait.ranks) == ((2,), (2,))


def test_a_cycle_of_sends_and_receives_is_a_hang_and_one_of_send_receive_pairs_is_none():
    assert hang_of({0: message("send", 2), 1: message("send", 0), 2: message("recv", 1)}).missing == ()
    assert hang_of({0: message("exchange", 2), 1: message("exchange", 0), 2: message("exchange", 1)}) is None


def alone(peer, *, op="send", is_alone=True):
    return Wait(op=op, seq=None, group="", ranks=() if peer is None else (peer,), age_s=1.0, alone=is_alone)


def test_a_cycle_consists_of_ranks_that_wait_for_one_message_only():
    def circle(rank, waits):
        return find_circle(rank, {waiting: wait.peer for waiting, wait in waits.items() if wait.alone})

    waits = {0: alone(2), 1: alone(0), 2: alone(1), 3: alone(0)}

    assert circle(0, waits) == [0, 2, 1]
    assert circle(3, waits) == []
    assert circle(0, {**waits, 1: alone(0, is_alone=False)}) == []
    assert circle(0, {**waits, 1: alone(None, op="barrier")}) == []


def test_a_rank_that_does_not_respond_is_missing_even_after_its_call():
    waiting, stopped = status(5, wait(5)), status(5, wait(5))

    assert hang_of({0: waiting, 1: stopped, 2: waiting}) is None
    hang = find_hang({0: waiting, 1: stopped, 2: waiting}, 3, limit_s=60.0, gone_s=2.0, quiet=[1])
    assert (hang.missing, hang.waiting) == ((1,), (0, 2))


def test_an_old_wait_of_a_rank_that_does_not_respond_is_ignored():
    elsewhere = Wait(op="barrier", seq=3, group="1", ranks=(0, 1, 2), age_s=70.0)
    known = {0: status(5, wait(5)), 1: status(4, elsewhere), 2: status(5, wait(5))}

    assert find_hang(known, 3, limit_s=60.0, gone_s=2.0, quiet=[1]).missing == (1,)


@pytest.mark.parametrize(("ended", "missing"), [((1,), None), ((1, 2), (1, 2))])
def test_a_message_from_any_rank_can_arrive_while_a_rank_runs(ended, missing):
    """Only this finds a server that is ended as soon as the first of its workers is done."""
    served = Wait(op="recv", seq=None, group="", ranks=(), age_s=3.0)
    others = {rank: status(3, state="ended" if rank in ended else "running") for rank in (1, 2)}
    hang = hang_of({0: status(3, served), **others})
    assert (hang and hang.missing) == missing
