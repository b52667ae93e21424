"""The workers' parts of the tree, put together: the same sums, in the same order, on all of them.

With 2 workers and 6 shards each has two nodes, of which each worker adds up one half of all elements::

    worker 0   0-1  2        first halves   (0-1 + (2 + 3)) + 4-5    then both
    worker 1   3    4-5      second halves  (0-1 + (2 + 3)) + 4-5    have both

So a worker sends what the best all-reduce sends, and half of that again for each further node: there is one
node where the numbers of shards and workers are powers of two, and at most 2 log S of them elsewhere.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from samestep.collectives.agree import agree
from samestep.collectives.fold import fold
from samestep.collectives.one_host import OneHostWorld
from samestep.collectives.shared_memory import PIECE
from samestep.exact.tree import TreeSum, merges, whole_nodes
from samestep.sharding.share import share
from samestep.world.world import World


class Exchange:
    """How the ranks' sums become one.

    Args:
        world: the ranks.
        shards: leaves of the whole tree, of which each rank adds its share up.
    """

    def __init__(self, world: World, shards: int) -> None:
        size = world.place.size
        nodes = [whole_nodes(share(shards, rank, size), shards) for rank in range(size)]
        self._world = world
        self._counts = [len(one) for one in nodes]
        self._merges = merges([node for one in nodes for node in one], shards)
        self._is_one_host = isinstance(world, OneHostWorld)

    def total(self, tree: TreeSum) -> list[Tensor]:
        """Return the row of the tree's root, with equal bits on every rank; called by all.

        Args:
            tree: this rank's part, whose rows are overwritten. Their tensors must be dense, and lie in
                memory alike in all rows and on all ranks.
        """
        if self._world.place.size == 1:
            return tree.total()
        rows = [[_flat(part) for part in row] for _, row in tree.nodes]
        # Where the host's memory carries it, what does not fit into the cache is not copied once more.
        for columns in _together(rows[0], PIECE if self._is_one_host else None):
            own = [[row[column] for column in columns] for row in rows]
            sums = own[0]
            parts = [one[0] if len(one) == 1 else torch.cat(one) for one in own]
            if self._counts == [1, 1] and not self._is_one_host:
                agree(self._world, "exact sum", parts[0])  # as `fold` does, which the back end's own does not
                self._world.all_reduce(parts[0])  # two numbers have one sum: any algorithm makes it
            else:
                fold(self._world, parts, self._counts, self._add_up)
            if len(sums) > 1:
                torch._foreach_copy_(sums, list(torch.split(parts[0], [one.numel() for one in sums])))
        return tree.nodes[0][1]

    def _add_up(self, nodes: list[Tensor], out: Tensor) -> None:
        sums, own = list(nodes), set[int]()
        *before, (left, right) = self._merges
        for into, other in before:
            if into in own:
                sums[into].add_(sums[other])
            else:
                sums[into] = sums[into] + sums[other]
                own.add(into)
        torch.add(sums[left], sums[right], out=out)


def _together(row: Sequence[Tensor], largest: int | None) -> list[list[int]]:
    """Return which columns travel in one message: those of one type, unless one is larger than `largest`."""
    messages: dict[object, list[int]] = {}
    for column, part in enumerate(row):
        alone = largest is not None and part.nbytes > largest
        messages.setdefault((part.dtype, part.device, column if alone else None), []).append(column)
    return list(messages.values())


def _flat(part: Tensor) -> Tensor:
    """Return the elements in the order in which they lie in memory."""
    return part.as_strided((part.numel(),), (1,))
