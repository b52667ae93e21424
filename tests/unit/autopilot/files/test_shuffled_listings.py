"""Each rank other than 0 gets the entries of a folder in an order of its own, always the same one."""

import pytest

from samestep.autopilot.files.folder_listings import ShuffledListings

NAMES = [f"{number}.txt" for number in range(6)]


def ordered(rank, names=NAMES):
    return ShuffledListings(lambda: rank).ordered("/data", names)


def test_rank_0_keeps_the_order():
    assert ordered(0) == NAMES


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_another_rank_gets_the_same_names_in_an_order_of_its_own(rank):
    assert sorted(ordered(rank)) == NAMES
    assert ordered(rank) != NAMES
    assert ordered(rank) == ordered(rank)


def test_ranks_have_different_orders():
    assert len({tuple(ordered(rank)) for rank in range(4)}) == 4


@pytest.mark.parametrize("names", [["b", "a"], ["a", "b"]])
@pytest.mark.parametrize("rank", [1, 2])
def test_two_names_are_in_the_other_order(rank, names):
    assert ordered(rank, names) == names[::-1]


def test_folders_of_another_order_are_recorded_once():
    listings = ShuffledListings(lambda: 1)
    for path in ("/data", "/data", "/empty", "/one"):
        listings.ordered(path, {"/data": NAMES, "/one": ["a"]}.get(path, []))
    assert listings.folders == ["/data"]
