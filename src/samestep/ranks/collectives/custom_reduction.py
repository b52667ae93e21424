"""Combines the tensors of all ranks by a given function, slice by slice, and gathers the slices.

Its use is a sum in an order that no all-reduce has. Here rank 1 has two parts, and `f` gets all of them in
order (N = 3)::

    rank 0   a             a0 b0 c0 d0  ->  f0            f0 f1 f2
    rank 1   b c    send   a1 b1 c1 d1  ->  f1     send   f0 f1 f2
    rank 2   d             a2 b2 c2 d2  ->  f2            f0 f1 f2

Cost: two messages to every other rank, to all of them at once; a rank with P parts sends (P + 1)(N-1)/N of
the tensor, which with one part is as much as the best all-reduce sends. Ranks of one host use shared memory.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from samestep.ranks.collectives.consistency_check import agree
from samestep.ranks.collectives.shared_memory import OneHostWorld, bounds
from samestep.ranks.world.operation import Folding
from samestep.ranks.world.protocol import World


def fold(world: World, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
    """Overwrite this rank's first part with the result of `folding` on the parts of all ranks.

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
