"""The loop that walks a schedule: it knows worlds and tensors, and no algorithm.

What is received is combined, or copied, piece by piece, while the next piece is on its way::

    piece      0      1      2      3
    network    [----] [----] [----] [----]
    combine           [--]   [--]   [--]   [--]
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise, zip_longest

import torch
from torch import Tensor

from samestep.collectives.arithmetic import COMBINE
from samestep.collectives.hop import Chunks, Hop, Schedule, bounds, runs
from samestep.world.operation import Op
from samestep.world.world import Pending, World

PIECE = 1 << 20
"""Bytes of a message; what is longer goes in several."""


def copy_along(world: World, hops: Schedule, flat: Tensor, *, chunks: int) -> None:
    """Walk a schedule; what is received takes the place of what was there.

    Args:
        world: the ranks.
        hops: of this rank.
        flat: one-dimensional and contiguous; changed in place.
        chunks: how many it is cut into.
    """
    for hop in hops:
        receive = [flat[part] for part in _pieces(hop.receive, flat, chunks)]
        send = [flat[part] for part in _pieces(hop.send, flat, chunks)]
        for pending in _begin(world, hop, send, receive):
            pending.wait()


def combine_along(world: World, hops: Schedule, total: Tensor, like: Tensor, op: Op, *, chunks: int) -> None:
    """Walk a schedule; what is received is combined with what is there.

    Args:
        world: the ranks.
        hops: of this rank.
        total: one-dimensional and contiguous; changed in place. May be of higher precision than what travels.
        like: of the type that travels.
        op: what combines.
        chunks: how many `total` is cut into.
    """
    edges = bounds(total.numel(), chunks)
    longest = max((sum(edges[c + 1] - edges[c] for c in hop.receive) for hop in hops), default=0)
    room = like.new_empty(longest)
    for hop in hops:
        parts = list(_pieces(hop.receive, total, chunks, like))
        receive = _cut(room, parts)
        send = [total[part].to(like.dtype) for part in _pieces(hop.send, total, chunks, like)]
        pendings = _begin(world, hop, send, receive)
        for part, piece, pending in zip_longest(parts, receive, pendings):
            pending.wait()
            if part is not None:
                COMBINE[op](total[part], piece.to(total.dtype), out=total[part])


def _begin(world: World, hop: Hop, send: list[Tensor], receive: list[Tensor]) -> list[Pending]:
    return [
        world.exchange(mine, theirs, to=hop.to, source=hop.source)
        for mine, theirs in zip_longest(send, receive)
    ]


def _pieces(chunks: Chunks, flat: Tensor, count: int, like: Tensor | None = None) -> Iterator[slice]:
    """Yield the messages that some of `count` chunks make; nobody sends an empty one."""
    edges = bounds(flat.numel(), count)
    elements = PIECE // (flat if like is None else like).element_size()
    for first, end in runs(chunks):
        for start in range(edges[first], edges[end], elements):
            yield slice(start, min(start + elements, edges[end]))


def _cut(room: Tensor, parts: list[slice]) -> list[Tensor]:
    """Return room for each of the parts."""
    ends = list(accumulate(part.stop - part.start for part in parts))
    return [room[start:end] for start, end in pairwise([0, *ends])]


def flattened(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in one dimension: its own, or copies if it is not contiguous."""
    return tensor.detach().contiguous().view(-1)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Give a tensor the elements that `flattened` returned and that were changed since."""
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))
