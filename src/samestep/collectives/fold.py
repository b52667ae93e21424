"""Fold: what all ranks hold becomes one tensor, by a function of theirs and slice by slice.

Above all a sum in an order that no all-reduce has. Here rank 1 has two parts, and `f` sees all of them in
order (N = 3)::

    rank 0   a             a0 b0 c0 d0  ->  f0            f0 f1 f2
    rank 1   b c    send   a1 b1 c1 d1  ->  f1     send   f0 f1 f2
    rank 2   d             a2 b2 c2 d2  ->  f2            f0 f1 f2

Cost: two messages to every other rank, to all of them at once; a rank with P parts sends (P + 1)(N-1)/N of
the tensor, which with one part is what the best all-reduce sends. Ranks of one host do it in its memory.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from samestep.collectives.agree import agree
from samestep.collectives.arithmetic import Folding
from samestep.collectives.hop import bounds
from samestep.collectives.one_host import OneHostWorld
from samestep.world.world import World


def fold(world: World, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
    """Overwrite this rank's first part with what `folding` makes of the parts of all ranks.

    Args:
        world: the ranks; all of them call this.
        parts: of this rank, at least one: one-dimensional and contiguous, of equal length and type
            everywhere. The others may be changed as well.
        counts: how many each rank has.
        folding: what is made of the elements at one place must depend on these alone.

    Raises:
        OutOfStep: the ranks call with different arguments.
    """
    if isinstance(world, OneHostWorld) and parts[0].device.type == "cpu":
        world.fold(parts, counts, folding)
        return
    agree(world, "fold", parts[0])
    edges = bounds(parts[0].numel(), world.place.size)
    slices = [slice(*pair) for pair in pairwise(edges)]
    own = parts[0][slices[world.place.rank]]
    folding(_own_slices(world, parts, counts, slices), own)
    _exchange_all(world, [own] * len(slices), [parts[0][one] for one in slices])


def _own_slices(
    world: World, parts: Sequence[Tensor], counts: Sequence[int], slices: Sequence[slice]
) -> list[Tensor]:
    """Return this rank's slice of the parts of all ranks, in order."""
    rank = world.place.rank
    mine = [part[slices[rank]] for part in parts]
    told = [_in_one([part[one] for part in parts]) for one in slices]
    heard = [mine[0].new_empty(count * mine[0].numel()) for count in counts]
    _exchange_all(world, told, heard)
    return [
        row
        for other, count in enumerate(counts)
        for row in (mine if other == rank else heard[other].view(count, mine[0].numel()))
    ]


def _in_one(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _exchange_all(world: World, told: Sequence[Tensor], heard: Sequence[Tensor]) -> None:
    """Send each other rank its tensor of `told`, and receive from each what its place in `heard` takes."""
    rank, size = world.place.rank, world.place.size
    under_way = []
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        send, receive = (one if one.numel() else None for one in (told[to], heard[source]))
        under_way.append(world.exchange(send, receive, to=to, source=source))
    for pending in under_way:
        pending.wait()
