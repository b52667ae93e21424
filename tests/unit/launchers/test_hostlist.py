"""Slurm's hostlist notation is expanded to its hosts and counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import DetectionError
from samestep.launchers.hostlist import hosts, tasks_per_node

names = st.from_regex(r"[a-z][a-z-]{0,6}", fullmatch=True)


@st.composite
def bracketed(draw):
    """Draw a bracket of single numbers and ranges, and the numbers in it."""
    width = draw(st.integers(1, 4))
    pieces, numbers = [], []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, 10**width - 1))
        last = draw(st.integers(first, min(first + 5, 10**width - 1)))
        low, high = str(first).zfill(width), str(last).zfill(width)
        pieces.append(low if draw(st.booleans()) and first == last else f"{low}-{high}")
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return f"[{','.join(pieces)}]", numbers


@st.composite
def host_lists(draw):
    """Draw a host list and its hosts: plain names, one bracket or two, with or without an ending."""
    parts, expected = [], []
    for _ in range(draw(st.integers(1, 4))):
        text, found = draw(names), [""]
        found = [text]
        for _ in range(draw(st.integers(0, 2))):
            bracket, numbers = draw(bracketed())
            ending = draw(st.sampled_from(["", "n", "-ib"]))
            text += bracket + ending
            found = [name + number + ending for name in found for number in numbers]
        parts.append(text)
        expected += found
    return ",".join(parts), expected


@given(host_lists())
def test_a_host_list_expands_to_its_hosts_in_order(case):
    text, expected = case
    assert hosts(text) == expected


def test_a_list_printed_by_scontrol_is_expanded():
    expected = ["node0", "node1", "node3", "gpu-08", "gpu-09", "gpu-10", "gpu-11"]
    assert hosts("node[0-1,3],gpu-[08-11]") == expected


@pytest.mark.parametrize(
    "text", ["node[0-1", "node0-1]", "node[a-b]", "node[3-1]", "node[]", "node[1,]", "n[1]]"]
)
def test_a_damaged_host_list_is_refused(text):
    with pytest.raises(DetectionError, match="cannot read the host list"):
        hosts(text)


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 9)), min_size=1, max_size=6))
def test_tasks_per_node_expand_to_one_count_for_each_node(runs):
    text = ",".join(f"{tasks}(x{nodes})" if nodes > 1 else str(tasks) for tasks, nodes in runs)
    assert tasks_per_node(text) == [tasks for tasks, nodes in runs for _ in range(nodes)]


@pytest.mark.parametrize("text", ["", "3;1", "2(x)", "two", "2x2"])
def test_damaged_tasks_per_node_are_refused(text):
    with pytest.raises(DetectionError, match="cannot read tasks per node"):
        tasks_per_node(text)
