"""The loop that walks a schedule: it knows worlds and tensors, and no algorithm.

What is received is combined piece by piece, while the next ones are on their way::

    piece      0      1      2      3
    network    [----] [----] [----] [----]
    combine           [--]   [--]   [--]   [--]

What is only copied arrives where it belongs, in one piece.
"""

from collections import deque
from collections.abc import Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from samestep.collectives.arithmetic import COMBINE
from samestep.collectives.hop import Chunks, Hop, Schedule, bounds, runs
from samestep.world.operation import Op
from samestep.world.world import Pending, World

PIECE = 1 << 21
"""Bytes of what is combined at once: smaller ones cost more messages, larger ones leave the cache."""
_AHEAD = 4
"""How many pieces are under way; each has room of its own, which the next ones use again."""


def copy_along(world: World, hops: Schedule, flat: Tensor, *, chunks: int) -> None:
    """Walk a schedule; what is received takes the place of what was there.

    Args:
        world: the ranks.
        hops: of this rank.
        flat: one-dimensional and contiguous; changed in place.
        chunks: how many it is cut into.
    """
    for hop in hops:
        receive = [flat[part] for part in _parts(hop.receive, flat, chunks)]
        send = [flat[part] for part in _parts(hop.send, flat, chunks)]
        under_way = [
            world.exchange(mine, theirs, to=hop.to, source=hop.source)
            for mine, theirs in zip_longest(send, receive)
        ]
        for pending in under_way:
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
    elements = max(1, min(PIECE // like.element_size(), total.numel()))
    room = like.new_empty(_AHEAD, elements)
    for hop in hops:
        under_way: deque[tuple[Pending, Tensor | None, slice | None]] = deque()
        for number, (mine, theirs) in enumerate(_pieces(hop, total, chunks, elements)):
            if len(under_way) == _AHEAD:
                _combine(*under_way.popleft(), total, op)
            heard = None if theirs is None else room[number % _AHEAD, : theirs.stop - theirs.start]
            told = None if mine is None else total[mine].to(like.dtype)
            under_way.append((world.exchange(told, heard, to=hop.to, source=hop.source), heard, theirs))
        while under_way:
            _combine(*under_way.popleft(), total, op)


def _combine(pending: Pending, heard: Tensor | None, part: slice | None, total: Tensor, op: Op) -> None:
    pending.wait()
    if heard is not None:
        COMBINE[op](total[part], heard.to(total.dtype), out=total[part])


def _pieces(
    hop: Hop, flat: Tensor, chunks: int, elements: int
) -> Iterator[tuple[slice | None, slice | None]]:
    """Yield what is sent and received at once."""

    def cut(numbers: Chunks) -> Iterator[slice]:
        for part in _parts(numbers, flat, chunks):
            for start in range(part.start, part.stop, elements):
                yield slice(start, min(start + elements, part.stop))

    return zip_longest(cut(hop.send), cut(hop.receive))


def _parts(numbers: Chunks, flat: Tensor, chunks: int) -> Iterator[slice]:
    """Yield what some of `chunks` chunks are of a tensor; what is empty is nothing."""
    edges = bounds(flat.numel(), chunks)
    for first, end in runs(numbers):
        if edges[first] < edges[end]:
            yield slice(edges[first], edges[end])


def flattened(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in one dimension: its own, or copies if it is not contiguous."""
    return tensor.detach().contiguous().view(-1)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Give a tensor the elements that `flattened` returned and that were changed since."""
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))
