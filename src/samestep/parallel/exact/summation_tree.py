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
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.parallel.sharding import share
from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.shared_memory import PIECE, OneHostWorld, bounds
from samestep.ranks.world.operation import Folding
from samestep.ranks.world.protocol import World

Node: TypeAlias = tuple[int, int]
"""The range of leaves below a node: first and stop."""


def siblings(leaves: int) -> dict[tuple[Node, Node], Node]:
    """Return the parent of each pair of siblings in the tree over `leaves` leaves.

    >>> siblings(3)
    {((0, 2), (2, 3)): (0, 3), ((0, 1), (1, 2)): (0, 2)}
    """
    parents: dict[tuple[Node, Node], Node] = {}

    def descend(first: int, stop: int) -> None:
        if stop - first > 1:
            middle = first + (1 << (stop - first - 1).bit_length() - 1)
            parents[(first, middle), (middle, stop)] = first, stop
            descend(first, middle)
            descend(middle, stop)

    descend(0, leaves)
    return parents


def whole_nodes(span: range, leaves: int) -> list[Node]:
    """Return the largest nodes whose leaves are all in `span`, in order.

    >>> whole_nodes(range(0, 3), 6), whole_nodes(range(3, 6), 6)
    ([(0, 2), (2, 3)], [(3, 4), (4, 6)])
    """
    parents, stack = siblings(leaves), []
    for leaf in span:
        stack.append((leaf, leaf + 1))
        while len(stack) > 1 and (stack[-2], stack[-1]) in parents:
            right, left = stack.pop(), stack.pop()
            stack.append(parents[left, right])
    return stack


def merges(nodes: Sequence[Node], leaves: int) -> list[tuple[int, int]]:
    """Return the pairs of `nodes` that are added, in order; each sum replaces its left operand.

    The nodes are in order and together cover the tree.

    >>> merges([(0, 2), (2, 3), (3, 4), (4, 6)], 6)
    [(1, 2), (0, 1), (0, 3)]
    """
    parents = siblings(leaves)
    stack: list[tuple[int, Node]] = []
    pairs = []
    for place, node in enumerate(nodes):
        stack.append((place, node))
        while len(stack) > 1 and (stack[-2][1], stack[-1][1]) in parents:
            (right, after), (left, before) = stack.pop(), stack.pop()
            stack.append((left, parents[before, after]))
            pairs.append((left, right))
    return pairs


class TreeSum:
    """Partial sums of nodes that are added from left to right: one row of tensors per node."""

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


class ShardReduction:
    """A reduction of the nodes of all ranks to the root: the same sums, in the same order, on all ranks.

    With 2 ranks and 6 shards each rank has two nodes, and sums one half of the elements of all nodes::

        rank 0   0-1  2        first halves   (0-1 + (2 + 3)) + 4-5    then they exchange
        rank 1   3    4-5      second halves  (0-1 + (2 + 3)) + 4-5    the halves

    A rank sends as much as in the best all-reduce, and half of that again for each further node: it has one
    node if the numbers of shards and ranks are powers of two, and at most 2 log S otherwise.

    Args:
        world: the ranks.
        shards: number of leaves of the tree; each rank has summed its own.
    """

    def __init__(self, world: World, shards: int) -> None:
        size = world.place.size
        nodes = [whole_nodes(share(shards, rank, size), shards) for rank in range(size)]
        self._world = world
        self._counts = [len(nodes_of_rank) for nodes_of_rank in nodes]
        self._merges = merges([node for nodes_of_rank in nodes for node in nodes_of_rank], shards)
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
            groups = [[row[column] for column in columns] for row in rows]
            sums = groups[0]
            parts = [group[0] if len(group) == 1 else torch.cat(group) for group in groups]
            if self._counts == [1, 1] and not self._is_one_host:
                agree(self._world, "exact sum", parts[0])  # `fold` includes this check, all_reduce does not
                self._world.all_reduce(parts[0])  # the sum of two numbers is the same in any algorithm
            else:
                fold(self._world, parts, self._counts, self._merge)
            if len(sums) > 1:
                torch._foreach_copy_(sums, list(torch.split(parts[0], [total.numel() for total in sums])))
        return tree.nodes[0][1]

    def _merge(self, nodes: list[Tensor], out: Tensor) -> None:
        sums, allocated = list(nodes), set[int]()
        *before, (left, right) = self._merges
        for into, added in before:
            if into in allocated:
                sums[into].add_(sums[added])
            else:
                sums[into] = sums[into] + sums[added]
                allocated.add(into)
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


def fold(world: World, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
    """Overwrite this rank's first part with the result of `folding` on the parts of all ranks.

    Here rank 1 has two parts, and `folding` gets all of them in order (N = 3)::

        rank 0   a             a0 b0 c0 d0  ->  f0            f0 f1 f2
        rank 1   b c    send   a1 b1 c1 d1  ->  f1     send   f0 f1 f2
        rank 2   d             a2 b2 c2 d2  ->  f2            f0 f1 f2

    Cost: two messages to every other rank, to all of them at once; a rank with P parts sends (P + 1)(N-1)/N
    of the tensor, which with one part is as much as the best all-reduce sends. Ranks of one host use shared
    memory.

    All ranks call this with one-dimensional contiguous parts of equal length and type, at least one each,
    which may be changed. `counts` has the number of parts of each rank; `folding` works element by element.

    Raises:
        OutOfStep: the ranks call with different arguments.
    """
    if isinstance(world, OneHostWorld) and parts[0].device.type == "cpu":
        world.fold(parts, counts, folding)
        return
    agree(world, "fold", parts[0])
    edges = bounds(parts[0].numel(), world.place.size)
    slices = [slice(*pair) for pair in pairwise(edges)]
    result = parts[0][slices[world.place.rank]]
    folding(_own_slices(world, parts, counts, slices), result)
    _send_and_receive_all(world, [result] * len(slices), [parts[0][of_rank] for of_rank in slices])


def _own_slices(
    world: World, parts: Sequence[Tensor], counts: Sequence[int], slices: Sequence[slice]
) -> list[Tensor]:
    """Return this rank's slice of the parts of all ranks, in order."""
    rank = world.place.rank
    pieces = [part[slices[rank]] for part in parts]
    sends = [_joined([part[of_peer] for part in parts]) for of_peer in slices]
    received = [pieces[0].new_empty(count * pieces[0].numel()) for count in counts]
    _send_and_receive_all(world, sends, received)
    return [
        row
        for sender, count in enumerate(counts)
        for row in (pieces if sender == rank else received[sender].view(count, pieces[0].numel()))
    ]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _send_and_receive_all(world: World, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """Send `sends[r]` to each other rank r, and receive into `receives[r]` from it."""
    rank, size = world.place.rank, world.place.size
    pending = []
    for distance in range(1, size):
        dst, src = (rank + distance) % size, (rank - distance) % size
        send, receive = (tensor if tensor.numel() else None for tensor in (sends[dst], receives[src]))
        pending.append(world.exchange(send, receive, dst=dst, src=src))
    for work in pending:
        work.wait()
