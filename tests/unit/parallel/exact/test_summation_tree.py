"""A sum is computed in the order of the tree at any number of workers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.parallel.exact.summation_tree import TreeSum, siblings, whole_nodes
from samestep.parallel.sharding import share


class Symbol:
    """A number whose text is the expression that summed it."""

    def __init__(self, text):
        self.text = text


def expression(first, stop):
    if stop - first == 1:
        return str(first)
    middle = first + (1 << (stop - first - 1).bit_length() - 1)
    return f"({expression(first, middle)}+{expression(middle, stop)})"


@pytest.fixture
def symbolic(monkeypatch):
    def add(into, row):
        for one, other in zip(into, row, strict=True):
            one.text = f"({one.text}+{other.text})"

    monkeypatch.setattr(torch, "_foreach_add_", add)


@pytest.mark.parametrize("leaves", range(1, 18))
def test_any_number_of_workers_computes_the_sum_of_one(symbolic, leaves):
    for size in range(1, leaves + 1):
        whole = TreeSum(leaves)
        for rank in range(size):
            own, part = share(leaves, rank, size), TreeSum(leaves)
            for leaf in own:
                part.add((leaf, leaf + 1), [Symbol(str(leaf))])
            assert [node for node, _ in part.nodes] == whole_nodes(own, leaves)
            for node, row in part.nodes:
                whole.add(node, row)

        ((_, (number,)),) = whole.nodes
        assert number.text == expression(0, leaves)
        assert whole.total()[0] is number


@given(st.integers(1, 200))
def test_each_node_but_the_root_has_one_parent_and_depth_is_logarithmic(leaves):
    parents = siblings(leaves)

    assert len(parents) == leaves - 1
    children = [child for pair in parents for child in pair]
    assert len(set(children)) == 2 * (leaves - 1)
    assert all(left[1] == right[0] and (left[0], right[1]) == parents[left, right] for left, right in parents)
    depth = {(0, leaves): 0}
    for (left, right), parent in parents.items():
        depth[left] = depth[right] = depth[parent] + 1
    assert max(depth.values()) == (leaves - 1).bit_length()
