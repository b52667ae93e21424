"""The workers' parts of the tree, put together: the same sums, in the same order, on all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from samestep.exact.tree import TreeSum, parts_of, whole_nodes
from samestep.sharding.share import share
from samestep.world.world import World

PIECE = 1 << 18
"""Elements of a node that are gathered at a time: bounds the temporary memory."""


def total(world: World, tree: TreeSum, shards: int) -> list[Tensor]:
    """Return the row of the tree's root, with equal bits on every rank; called by all.

    Args:
        world: the ranks; each has added its share of the leaves.
        tree: this rank's part.
        shards: leaves of the whole tree.
    """
    size = world.place.size
    if size == 1:
        return tree.total()
    nodes = [whole_nodes(share(shards, rank, size), shards) for rank in range(size)]
    rows = [row for _, row in tree.nodes]
    if size == 2 and [len(one) for one in nodes] == [1, 1]:
        for column in rows[0]:  # two numbers have one sum: any algorithm makes it
            world.all_reduce(column)
        return rows[0]
    return [_column(world, parts_of(tree.nodes, column), nodes, shards) for column in range(len(rows[0]))]


def _column(
    world: World, parts: list[Tensor], nodes: Sequence[Sequence[tuple[int, int]]], shards: int
) -> Tensor:
    """Return the sum of one column; `parts` are those of this rank's nodes, of equal shapes."""
    most = max(len(one) for one in nodes)
    out = parts[0]
    for start in range(0, out.numel(), PIECE):
        here = slice(start, start + PIECE)
        sent = torch.stack(
            [part[here] for part in parts] + [torch.zeros_like(out[here])] * (most - len(parts))
        )
        tree = TreeSum(shards)
        for theirs, gathered in zip(nodes, world.all_gather(sent), strict=True):
            for node, part in zip(theirs, gathered, strict=False):
                tree.add(node, [part])
        out[here] = tree.total()[0]
    return out
