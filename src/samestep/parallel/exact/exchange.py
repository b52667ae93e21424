"""Reduces the ranks' parts of the tree to its root: the same sums, in the same order, on all ranks.

With 2 ranks and 6 shards each rank has two nodes, and sums one half of the elements of all nodes::

    rank 0   0-1  2        first halves   (0-1 + (2 + 3)) + 4-5    then they exchange
    rank 1   3    4-5      second halves  (0-1 + (2 + 3)) + 4-5    the halves

A rank sends as much as in the best all-reduce, and half of that again for each further node: it has one node
if the numbers of shards and ranks are powers of two, and at most 2 log S otherwise.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from samestep.parallel.exact.summation_tree import TreeSum, merges, whole_nodes
from samestep.parallel.sharding.share import share
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.custom_reduction import fold
from samestep.ranks.collectives.shared_memory import PIECE
from samestep.ranks.collectives.shared_memory_world import OneHostWorld
from samestep.ranks.world.protocol import World


class ShardReduction:
    """A reduction of the nodes of all ranks.

    Args:
        world: the ranks.
        shards: number of leaves of the tree; each rank has summed its own.
    """

    def __init__(self, world: World, shards: int) -> None:
        size = world.place.size
        nodes = [whole_nodes(share(shards, rank, size), shards) for rank in range(size)]
        self._world = world
        self._counts = [len(one) for one in nodes]
        self._merges = merges([node for one in nodes for node in one], shards)
        self._is_one_host = isinstance(world, OneHostWorld)

    def total(self, tree: TreeSum) -> list[Tensor]:
        """Return the row of the tree's root, with equal bits on every rank; all ranks call this.

        Args:
            tree: this rank's part, whose rows are overwritten. Their tensors must be dense, with the same
                strides in all rows and on all ranks.
        """
        if self._world.place.size == 1:
            return tree.total()
        rows = [[_flat(part) for part in row] for _, row in tree.nodes]
        # In shared memory, a tensor that does not fit into the cache is sent alone, which saves a copy.
        for columns in _group_columns(rows[0], PIECE if self._is_one_host else None):
            own = [[row[column] for column in columns] for row in rows]
            sums = own[0]
            parts = [one[0] if len(one) == 1 else torch.cat(one) for one in own]
            if self._counts == [1, 1] and not self._is_one_host:
                agree(self._world, "exact sum", parts[0])  # `fold` includes this check, all_reduce does not
                self._world.all_reduce(parts[0])  # the sum of two numbers is the same in any algorithm
            else:
                fold(self._world, parts, self._counts, self._merge)
            if len(sums) > 1:
                torch._foreach_copy_(sums, list(torch.split(parts[0], [one.numel() for one in sums])))
        return tree.nodes[0][1]

    def _merge(self, nodes: list[Tensor], out: Tensor) -> None:
        sums, own = list(nodes), set[int]()
        *before, (left, right) = self._merges
        for into, other in before:
            if into in own:
                sums[into].add_(sums[other])
            else:
                sums[into] = sums[into] + sums[other]
                own.add(into)
        torch.add(sums[left], sums[right], out=out)


def _group_columns(row: Sequence[Tensor], largest: int | None) -> list[list[int]]:
    """Group columns into messages by dtype and device; a column above `largest` bytes is sent alone."""
    messages: dict[object, list[int]] = {}
    for column, part in enumerate(row):
        alone = largest is not None and part.nbytes > largest
        messages.setdefault((part.dtype, part.device, column if alone else None), []).append(column)
    return list(messages.values())


def _flat(part: Tensor) -> Tensor:
    """Return the elements in memory order."""
    return part.as_strided((part.numel(),), (1,))
