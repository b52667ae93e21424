"""Who waits for whom, told from where each rank stands."""

import pytest

from samestep.watch.hang import Advice, describe, find_hang, ran_out
from samestep.watch.standing import Standing, Wait, unpacked

ADVICE = Advice(apart="Go together.", late="Be patient.")


def wait(seq, *, op="all_reduce", age_s=60.0, ranks=(0, 1, 2)):
    return Wait(op=op, seq=seq, group="0", ranks=ranks, age_s=age_s)


def standing(entered, wait=None, *, state="running", at="train.py:7: sleep(9)"):
    return Standing(start=0, beat=1, state=state, at=at, entered={"0": entered}, met=True, wait=wait)


def hang_of(standings, limit_s=60.0):
    return find_hang(standings, 3, limit_s=limit_s, gone_s=2.0)


def test_a_rank_that_does_not_come_is_missing():
    hang = hang_of({0: standing(5, wait(5)), 1: standing(4), 2: standing(5, wait(5, age_s=10.0))})

    assert (hang.missing, hang.waiting) == ((1,), (0, 2))


def test_nobody_is_missing_before_the_time_has_passed():
    assert hang_of({0: standing(5, wait(5, age_s=59.0)), 1: standing(4), 2: standing(4)}) is None


def test_a_rank_whose_script_has_ended_is_not_waited_for_as_long():
    late = wait(5, age_s=2.0)

    assert hang_of({0: standing(5, late), 1: standing(4), 2: standing(5, late)}) is None
    assert hang_of({0: standing(5, late), 1: standing(4, state="ended"), 2: standing(5, late)}).missing == (
        1,
    )


def test_ranks_that_wait_themselves_are_not_the_cause():
    elsewhere = Wait(op="broadcast", seq=3, group="1", ranks=(1, 2), age_s=70.0)
    hang = hang_of({0: standing(5, wait(5)), 1: standing(4, elsewhere), 2: standing(4)})

    assert hang.missing == (2,)


def test_a_collective_that_all_are_in_may_only_be_slow():
    slow = wait(5, age_s=600.0)

    meeting = Wait(op="init_process_group", seq=None, group="", ranks=(), age_s=600.0)

    assert hang_of(dict.fromkeys(range(3), standing(5, slow))) is None
    assert hang_of(dict.fromkeys(range(3), standing(0, meeting))) is None


def test_different_collectives_with_one_number_are_a_hang():
    other = wait(5, op="all_gather")
    hang = hang_of({0: standing(5, wait(5)), 1: standing(5, other), 2: standing(5, other)})

    assert hang.missing == ()
    told = describe(hang, {0: standing(5, wait(5)), 1: standing(5, other)}, 2, quiet={}, advice=ADVICE)
    assert told.splitlines()[0].startswith("the run hangs: the ranks wait for each other for 60 s")
    assert told.splitlines()[-1] == "Go together."


def test_ranks_that_wait_for_each_other_in_two_groups_miss_nobody():
    other = Wait(op="barrier", seq=3, group="1", ranks=(0, 1, 2), age_s=2.0)
    hang = hang_of({0: standing(5, wait(5)), 1: standing(4, other), 2: standing(4, other)})

    assert (hang.missing, hang.waiting) == ((), (0,))


def test_a_rank_that_never_gave_word_is_missing():
    assert hang_of({0: standing(5, wait(5)), 2: standing(5, wait(5))}).missing == (1,)


def test_a_rank_outside_of_the_group_is_not_waited_for():
    pair = wait(5, ranks=(0, 1))

    assert hang_of({0: standing(5, pair), 1: standing(5, pair), 2: standing(1)}) is None


def test_ranks_in_one_place_share_a_line_and_a_quiet_one_is_told_as_such():
    standings = {
        0: standing(5, wait(5), at="train.py:8: reduce()"),
        1: standing(4),
        2: standing(5, wait(5), at="train.py:8: reduce()"),
    }
    told = describe(hang_of(standings), standings, 3, quiet={1: "stopped"}, advice=ADVICE)

    assert told.splitlines() == [
        "the run hangs: rank 1 of 3 does not come to all_reduce #5, where ranks 0, 2 wait for 60 s.",
        "  ranks 0, 2: waiting in all_reduce #5 at train.py:8: reduce()",
        "  rank 1: stopped, last seen at train.py:7: sleep(9)",
        "Be patient.",
    ]


def test_a_script_that_ended_before_a_collective_ran_out_of_steps():
    last = wait(5, age_s=0.0)
    standings = {0: standing(5), 1: standing(4, state="ended"), 2: standing(5, state="ended")}

    assert ran_out(standings, last) == (1,)
    assert ran_out({**standings, 1: standing(4, state="failed")}, last) == ()


def test_a_standing_travels_as_bytes():
    one = standing(5, wait(5))

    assert unpacked(one.packed()) == one


def message(op, peer):
    return standing(3, Wait(op=op, seq=None, group="", ranks=(peer,), age_s=60.0))


@pytest.mark.parametrize("op", ["recv", "send", "exchange"])
def test_who_waits_for_a_message_of_one_that_waits_is_not_in_a_circle(op):
    hang = hang_of({0: message(op, 1), 1: message(op, 2), 2: standing(3)})

    assert (hang.missing, hang.wait.ranks) == ((2,), (2,))


def test_messages_that_wait_for_each_other_are_a_hang_and_exchanges_may_be_slow():
    assert hang_of({0: message("send", 2), 1: message("send", 0), 2: message("recv", 1)}).missing == ()
    assert hang_of({0: message("exchange", 2), 1: message("exchange", 0), 2: message("exchange", 1)}) is None
