"""Who is missing, told from what ranks have written down."""

import pytest

from samestep.ranks.world.missing_ranks import Found, Note, find_circle, find_missing, in_words, present


def note(peer, **fields):
    return Note(**{"op": "exchange", "peer": peer, "number": 7, **fields})


def gave_up(peer, **fields):
    return note(peer, gave_up=True, **fields)


def test_who_waits_for_one_that_waits_finds_the_one_that_says_nothing():
    found = find_missing(3, 4, {0: gave_up(1), 2: note(1, beat=4), 3: gave_up(2)})

    assert found == Found(missing=(1,), way=(3, 2, 1))
    assert in_words(found, "timed out") == (
        "rank 1 is lost to rank 3 (rank 3 waited for rank 2, rank 2 for rank 1): timed out"
    )


def test_a_neighbour_that_says_nothing_is_lost():
    found = find_missing(0, 2, {0: gave_up(1)})

    assert in_words(found, "Connection closed") == "rank 1 is lost to rank 0: Connection closed"


def test_in_a_collective_all_are_missing_who_say_nothing():
    notes = {0: gave_up(None), 2: note(None, beat=3)}

    assert in_words(find_missing(0, 5, notes), "closed") == "ranks 1, 3, 4 are lost to rank 0: closed"


def test_who_waits_for_one_in_a_collective_asks_for_those_missing_there():
    assert find_missing(0, 3, {0: gave_up(1), 1: gave_up(None)}).missing == (2,)


@pytest.mark.parametrize("notes", [{0: gave_up(1), 1: gave_up(0)}, {0: gave_up(None), 1: note(None, beat=1)}])
def test_where_all_are_there_nobody_is_missing(notes):
    found = find_missing(0, 2, notes)

    assert found.missing == ()
    assert "though no rank is missing" in in_words(found, "timed out")


def test_a_rank_that_writes_no_more_is_not_there_unless_it_has_given_up():
    before = {0: note(1, beat=3), 1: note(2, beat=5), 2: gave_up(0)}
    after = {0: note(1, beat=4), 1: note(2, beat=5), 2: gave_up(0), 3: note(0, beat=1)}

    assert sorted(present(before, after)) == [0, 2, 3]


def test_notes_travel_as_text():
    assert Note.from_json(note(None, beat=2, alone=True).to_json().encode()) == note(None, beat=2, alone=True)


def test_a_circle_of_ranks_that_do_nothing_else():
    notes = {0: note(2, alone=True), 1: note(0, alone=True), 2: note(1, alone=True), 3: note(0, alone=True)}

    assert [rank for rank, _ in find_circle(0, notes)] == [0, 2, 1]
    assert find_circle(3, notes) == []
    assert find_circle(0, {**notes, 1: note(0)}) == []
    assert find_circle(0, {**notes, 1: note(None, alone=True)}) == []
