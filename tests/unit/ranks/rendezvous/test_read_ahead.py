"""Values of several ranks are fetched together if every rank posts its own before it waits for others."""

import threading
from contextlib import closing
from datetime import timedelta

import pytest

from samestep.ranks.rendezvous.network_store import NetworkStore, ReadAhead, serve

KEY = b"k" * 32


@pytest.fixture
def served():
    with closing(serve("127.0.0.1", 0, KEY, everywhere=False)) as found:
        yield found


def test_values_are_fetched_together_in_blocks_of_ranks():
    ahead = ReadAhead(rank=3, size=20)
    ahead.posted("a/3")

    assert ahead.missing(["a/3"]) == ["a/3", *(f"a/{rank}" for rank in (0, 1, 2, 4, 5, 6, 7))]
    assert set(ahead.missing(["a/17"])) == {f"a/{rank}" for rank in (16, 17, 18, 19)}


@pytest.mark.parametrize("posted", ["b/3", "a/2", "a/3/x", "3"])
def test_a_series_without_a_value_of_this_rank_is_fetched_one_by_one(posted):
    ahead = ReadAhead(rank=3, size=20)
    ahead.posted(posted)

    assert ahead.missing(["a/1", "nonce"]) == ["a/1", "nonce"]


def test_a_fetched_value_is_returned_once():
    ahead = ReadAhead(rank=0, size=2)
    ahead.fetched(["a", "b"], [b"1", b""])

    assert ahead.missing(["a", "b", "c"]) == ["c"]
    assert [ahead.taken("b"), ahead.taken("b")] == [b"", None]
    assert ahead.missing(["a", "b"]) == ["b"]


def test_a_store_reads_ahead_on_one_thread_within_the_block(served):
    other = NetworkStore("127.0.0.1", served.port, KEY)
    served.set("a/1", "old")
    elsewhere = []
    with other.reading_ahead(0, 2):
        other.set("a/0", "mine")
        other.wait(["a/0"], timedelta(seconds=5))
        served.set("a/1", "new")
        thread = threading.Thread(target=lambda: elsewhere.append(other.get("a/1")))
        thread.start()
        thread.join()
        assert other.get("a/1") == b"old"
        assert other.get("a/1") == b"new"
        other.wait(["a/1"])
        served.set("a/1", "newer")

    assert elsewhere == [b"new"]
    assert other.get("a/1") == b"newer"
    other.close()
