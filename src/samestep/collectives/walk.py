"""The loop that walks a schedule: it knows worlds and tensors, and no algorithm.

What is received is combined piece by piece, while the next ones are on their way::

    piece      0      1      2      3
    network    [----] [----] [----] [----]
    combine           [--]   [--]   [--]   [--]

What is only copied arrives where it belongs, in one piece.
"""

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.collectives.arithmetic import COMBINE
from samestep.collectives.hop import Chunks, Hop, bounds, runs
from samestep.world.operation import Op
from samestep.world.world import Pending, World

PIECE = 1 << 21
"""Bytes of what is combined at once: smaller ones cost more messages, larger ones leave the cache."""
_AHEAD = 4
"""How many pieces are under way; each has room of its own, which the next ones use again."""

_Cut: TypeAlias = tuple[slice | None, slice | None]
"""What is sent, and what is received meanwhile."""


def copy_along(world: World, hops: Iterable[Hop], flat: Tensor, *, chunks: int) -> None:
    """Walk a schedule; what is received takes the place of what was there.

    Args:
        world: the ranks.
        hops: of this rank.
        flat: one-dimensional and contiguous; changed in place.
        chunks: how many it is cut into.
    """
    whole = max(1, flat.numel())
    for hop, cuts in _cut(tuple(hops), flat.numel(), chunks, whole):
        under_way = [
            world.exchange(
                None if mine is None else flat[mine],
                None if theirs is None else flat[theirs],
                to=hop.to,
                source=hop.source,
            )
            for mine, theirs in cuts
        ]
        for pending in under_way:
            pending.wait()


def combine_along(
    world: World, hops: Iterable[Hop], total: Tensor, like: Tensor, op: Op, *, chunks: int
) -> None:
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
    for hop, cuts in _cut(tuple(hops), total.numel(), chunks, elements):
        under_way: deque[tuple[Pending, Tensor | None, slice | None]] = deque()
        for number, (mine, theirs) in enumerate(cuts):
            if len(under_way) == _AHEAD:
                _combine(*under_way.popleft(), total, op)
            heard = None if theirs is None else room[number % _AHEAD, : theirs.stop - theirs.start]
            told = None if mine is None else _typed(total[mine], like.dtype)
            under_way.append((world.exchange(told, heard, to=hop.to, source=hop.source), heard, theirs))
        while under_way:
            _combine(*under_way.popleft(), total, op)


def _combine(pending: Pending, heard: Tensor | None, part: slice | None, total: Tensor, op: Op) -> None:
    pending.wait()
    if heard is not None:
        into = total[part]
        COMBINE[op](into, _typed(heard, total.dtype), out=into)


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


@functools.lru_cache(maxsize=256)  # the same tensors come again with every step
def _cut(hops: tuple[Hop, ...], elements: int, chunks: int, piece: int) -> list[tuple[Hop, list[_Cut]]]:
    """Return what is sent and received at once in each hop, in pieces of so many elements at most."""
    edges = bounds(elements, chunks)

    def pieces(numbers: Chunks) -> Iterator[slice]:
        for first, end in runs(numbers):  # what is empty is nothing
            for start in range(edges[first], edges[end], piece):
                yield slice(start, min(start + piece, edges[end]))

    return [(hop, list(zip_longest(pieces(hop.send), pieces(hop.receive)))) for hop in hops]


def flattened(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in one dimension: its own, or copies if it is not contiguous."""
    return tensor.detach().contiguous().view(-1)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Give a tensor the elements that `flattened` returned and that were changed since."""
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))
