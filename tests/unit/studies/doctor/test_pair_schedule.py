"""Each pair of ranks measures once, and no host is in two pairs at a time."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.studies.doctor.links import MOST_RANKS, measuring_ranks, predecessors, rounds

HOSTS = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=12)


@settings(max_examples=40)
@given(HOSTS)
def test_each_pair_of_present_ranks_is_scheduled_once(hosts):
    ranks = [rank for rank, host in enumerate(hosts) if host]
    every = rounds(hosts, ranks)
    assert sorted(pair for this in every for pair in this) == list(combinations(ranks, 2))


@settings(max_examples=40)
@given(HOSTS)
def test_no_host_is_in_two_pairs_of_a_round(hosts):
    for this in rounds(hosts, [rank for rank, host in enumerate(hosts) if host]):
        busy = [host for pair in this for host in {hosts[rank] for rank in pair}]
        assert len(busy) == len(set(busy))


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=MOST_RANKS))
def test_predecessors_of_a_pair_imply_all_earlier_pairs_of_its_hosts(hosts):
    """After the predecessors, and theirs, all earlier pairs of the hosts have ended."""
    every = rounds(hosts, [rank for rank, host in enumerate(hosts) if host])
    past, waited = set(), {}
    for this in every:
        for pair in this:
            direct = predecessors(pair, every, hosts)
            waited[pair] = set(direct).union(*(waited[one] for one in direct))
            mine = {hosts[rank] for rank in pair}
            assert {one for one in past if mine & {hosts[rank] for rank in one}} <= waited[pair]
        past |= set(this)


def test_ranks_of_one_host_measure_one_pair_at_a_time():
    assert rounds(["a"] * 3, [0, 1, 2]) == [[(0, 1)], [(0, 2)], [(1, 2)]]


def test_ranks_on_separate_hosts_measure_at_the_same_time():
    assert rounds(list("abcd"), [0, 1, 2, 3]) == [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]


def test_one_rank_of_each_host_measures_if_there_are_many():
    hosts = ["a"] * 4 + ["b"] * 4 + [""] + ["c"] * 3
    assert measuring_ranks(hosts) == [0, 4, 9]
    assert measuring_ranks(["a"] * MOST_RANKS) == list(range(MOST_RANKS))
