"""The difference between the calls in which all ranks wait for each other is found."""

import pytest

from samestep.ranks.hang.detection import Hang, find_difference, find_hang
from samestep.ranks.hang.rank_status import RankStatus, Wait


def status(op, seq, *recent, root=None, peer=None):
    wait = Wait(
        op=op,
        seq=seq,
        group="0",
        ranks=(0, 1) if peer is None else (peer,),
        age_s=60.0,
        recent=recent,
        root=root,
    )
    return RankStatus(generation=0, beat=1, entered={"0": seq or 0}, has_joined=True, wait=wait)


def kind_and_words(*statuses):
    known = dict(enumerate(statuses))
    hang = find_hang(known, len(known), limit_s=60.0, gone_s=2.0)
    assert hang.missing == ()
    found = find_difference(hang, known)
    return found and (found.kind, found.words)


EARLIER = (4, "all_reduce", "9 float32")


def test_different_collectives_of_one_number_are_reported():
    kind, words = kind_and_words(
        status("all_reduce", 5, EARLIER, (5, "all_reduce", "1 float32")),
        status("broadcast", 5, EARLIER, (5, "broadcast", "3 int32")),
    )

    assert kind == "calls"
    assert "rank 0 calls all_reduce #5 of 1 float32, rank 1 calls broadcast #5 of 3 int32" in words


def test_different_data_in_an_earlier_collective_is_reported():
    later = (5, "all_reduce", "3 float32"), (6, "broadcast", "3 int32")
    kind, words = kind_and_words(
        status("broadcast", 6, EARLIER, *later),
        status("all_reduce", 5, EARLIER, (5, "all_reduce", "4 float32")),
    )

    assert kind == "data"
    assert "all_reduce #5" in words
    assert "rank 0 gives 3 float32, rank 1 gives 4 float32" in words


def test_different_roots_are_reported():
    call = (5, "broadcast", "1 float32")
    kind, words = kind_and_words(status("broadcast", 5, call, root=0), status("broadcast", 5, call, root=1))

    assert kind == "roots"
    assert "broadcast #5" in words


@pytest.mark.parametrize("op", ["send", "recv"])
def test_messages_that_do_not_match_are_reported(op):
    kind, words = kind_and_words(status(op, None, peer=1), status(op, None, peer=0))

    assert kind == "messages"
    assert words.count("rank 0") == words.count("rank 1") == 2


def test_without_records_no_difference_is_found():
    wait = status("all_reduce", 5).wait
    known = {0: status("all_reduce", 5), 1: status("broadcast", 5)}

    assert find_difference(Hang(wait=wait, waiting=(0,), missing=()), known) is None
