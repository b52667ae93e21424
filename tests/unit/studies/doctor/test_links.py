"""Broken and slow links and differing clocks are reported from the measured figures."""

import pytest

from samestep.studies.doctor.links import judge, table
from samestep.studies.doctor.pair_measurement import Link, rate

HOSTS = {0: "node0", 1: "node1", 2: "node2", 3: "node3"}
GOOD = {"latency_s": 20e-6, "there": 3e9, "back": 3e9}


def all_pairs(**odd):
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    return [Link(a=a, b=b, **{**GOOD, **odd.get(f"_{a}{b}", {})}) for a, b in pairs]


def findings_of(links, *, hosts=HOSTS, backend="gloo"):
    return [(finding.text, finding.hurts) for finding in judge(links, hosts, backend=backend)]


def test_good_links_have_no_finding():
    assert findings_of(all_pairs()) == []


def test_a_pair_of_ranks_that_cannot_connect_is_a_problem():
    ((text, hurts),) = findings_of(all_pairs(_13={"error": "10.0.0.4:4242: no answer"}))
    assert hurts
    assert "1 of 6 pairs" in text
    assert "rank 1 (node1) to rank 3 (node3) at 10.0.0.4:4242: no answer" in text
    assert "firewall" in text


def test_a_link_that_is_much_slower_in_one_direction_is_a_problem():
    ((text, hurts),) = findings_of(all_pairs(_02={"back": 0.4e9}))
    assert hurts
    assert "rank 0 (node0) to rank 2 (node2) 0.4 GB/s" in text
    assert "ethtool" in text


@pytest.mark.parametrize(("speed", "backend", "hurts"), [(0.12e9, "gloo", False), (0.012e9, "gloo", True)])
def test_a_slow_network_is_reported_with_its_effect_on_a_step(speed, backend, hurts):
    links = [Link(a=0, b=1, latency_s=1e-4, there=speed, back=speed)]
    ((text, is_hurting),) = findings_of(links, backend=backend)
    assert is_hurting == hurts
    assert "25 M parameters" in text


def test_slow_tcp_is_only_a_note_with_nccl():
    ((text, hurts),) = findings_of([Link(a=0, b=1, there=1e7, back=1e7)], backend="nccl")
    assert not hurts
    assert "NCCL" in text


def test_links_within_a_host_have_no_finding():
    assert findings_of([Link(a=0, b=1, there=1e7, back=1e7, ahead_s=9.0)], hosts={0: "a", 1: "a"}) == []


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [(0.5, []), (2.0, [("2 s ahead of", False)]), (-90.0, [("1 min 30 s behind", True)])],
)
def test_clocks_that_differ_are_reported(ahead, expected):
    found = findings_of(all_pairs(_03={"ahead_s": ahead}))
    assert [hurts for _, hurts in found] == [hurts for _, hurts in expected]
    for (text, _), (phrase, _) in zip(found, expected, strict=True):
        assert f"The clock of node3 is {phrase} that of node0" in text


def test_the_tables_have_both_directions_and_a_mark_for_unknown_figures():
    first = {"latency_s": 25e-6, "there": 1e9, "back": 2e9}
    lines = table([Link(a=0, b=1, **first), Link(a=0, b=2, error="x: no answer")])
    cells = [line.split() for line in lines]
    assert cells[2:5] == [["0", "-", "25", "?"], ["1", "25", "-", "?"], ["2", "?", "?", "-"]]
    assert cells[8:11] == [["0", "-", "1", "?"], ["1", "2", "-", "?"], ["2", "?", "?", "-"]]


def test_bytes_that_fill_the_buffers_first_are_not_counted_in_the_rate():
    """The link of this test passes 500 kB at once, and then 1 MB/s."""
    arrived = [(0.0, 0), (0.01, 500_000)] + [(0.1 * i, 500_000 + 100_000 * i) for i in range(1, 11)]
    assert rate(arrived) == pytest.approx(1e6)
    assert rate([(0.0, 0)]) == 0.0
    assert rate([(0.0, 0), (1.0, 700)]) == 700.0
