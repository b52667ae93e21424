r"""Sums the logical shards in one fixed binary tree.

Floating-point sums depend on their order, so the order must not depend on the workers. The tree of 6 shards::

              0-5
            /     \
         0-3       4-5             the left child has the largest power of two below its parent's size
        /   \      / \
      0-1   2-3   4   5
      / \   / \
     0   1 2   3

Each worker has contiguous shards and sums the complete nodes among them. The remaining nodes are summed slice
by slice, each slice on one worker. With 2 workers, the first has nodes 0-1 and 2, the second 3 and 4-5; a
single worker sums the whole tree. In each case node 0-3 is (0 + 1) + (2 + 3), in this order.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Node: TypeAlias = tuple[int, int]
"""The range of leaves below a node: first and stop."""


def siblings(leaves: int) -> dict[tuple[Node, Node], Node]:
    """Return the parent of each pair of siblings in the tree over `leaves` leaves.

    >>> siblings(3)
    {((0, 2), (2, 3)): (0, 3), ((0, 1), (1, 2)): (0, 2)}
    """
    found: dict[tuple[Node, Node], Node] = {}

    def descend(first: int, stop: int) -> None:
        if stop - first > 1:
            middle = first + (1 << (stop - first - 1).bit_length() - 1)
            found[(first, middle), (middle, stop)] = first, stop
            descend(first, middle)
            descend(middle, stop)

    descend(0, leaves)
    return found


def whole_nodes(own: range, leaves: int) -> list[Node]:
    """Return the largest nodes whose leaves are all in `own`, in order.

    >>> whole_nodes(range(0, 3), 6), whole_nodes(range(3, 6), 6)
    ([(0, 2), (2, 3)], [(3, 4), (4, 6)])
    """
    parents, stack = siblings(leaves), []
    for leaf in own:
        stack.append((leaf, leaf + 1))
        while len(stack) > 1 and (stack[-2], stack[-1]) in parents:
            right, left = stack.pop(), stack.pop()
            stack.append(parents[left, right])
    return stack


def merges(nodes: Sequence[Node], leaves: int) -> list[tuple[int, int]]:
    """Return the pairs of `nodes` that are added, in order; each sum replaces its left operand.

    Args:
        nodes: nodes in order that together cover the tree.
        leaves: number of leaves of the tree.

    >>> merges([(0, 2), (2, 3), (3, 4), (4, 6)], 6)
    [(1, 2), (0, 1), (0, 3)]
    """
    parents = siblings(leaves)
    stack: list[tuple[int, Node]] = []
    found = []
    for place, node in enumerate(nodes):
        stack.append((place, node))
        while len(stack) > 1 and (stack[-2][1], stack[-1][1]) in parents:
            (right, after), (left, before) = stack.pop(), stack.pop()
            stack.append((left, parents[before, after]))
            found.append((left, right))
    return found


class TreeSum:
    """Partial sums of nodes that are added from left to right: one row of tensors per node.

    Args:
        leaves: number of leaves of the tree.
    """

    def __init__(self, leaves: int) -> None:
        self._parents = siblings(leaves)
        self.nodes: list[tuple[Node, list[Tensor]]] = []

    def add(self, node: Node, row: list[Tensor]) -> None:
        """Add the row of the next node; the row is kept and overwritten."""
        self.nodes.append((node, row))
        while len(self.nodes) > 1:
            (left, into), (right, row) = self.nodes[-2:]
            if (left, right) not in self._parents:
                return
            if row:
                torch._foreach_add_(into, row)
            self.nodes[-2:] = [(self._parents[left, right], into)]

    def total(self) -> list[Tensor]:
        """Return the row of the root, after all leaves were added."""
        ((_, row),) = self.nodes
        return row
