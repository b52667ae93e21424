"""The walk along a schedule: it knows worlds and tensors, and no algorithm.

What is received is combined piece by piece, while the next ones are on their way::

    piece      0      1      2      3
    network    [----] [----] [----] [----]
    combine           [--]   [--]   [--]   [--]

What is only copied arrives where it belongs, in one piece. Receiving begins early, that of later hops too,
because a message waits for who takes it: a chunk that is complete cannot come before all ranks have what this
one had of it, so that nothing is overwritten that is still needed.
"""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.collectives.arithmetic import COMBINE
from samestep.collectives.hop import Chunks, Hop, bounds, runs
from samestep.world.operation import Op, as_they_lie
from samestep.world.world import Pending, World

PIECE = 1 << 22
"""Bytes of what is combined at once: smaller ones cost more messages, larger ones leave the cache."""
_AHEAD = 3
"""How many pieces are under way; each has room of its own, which the next ones use again."""

_Cut: TypeAlias = tuple[slice | None, slice | None]
"""What is sent, and what is received meanwhile."""
_Cuts: TypeAlias = Sequence[tuple[Hop, Sequence[_Cut]]]
"""Those of each hop."""


class Walk:
    """One rank's walk along hops in which it combines, and then along those in which it copies.

    Args:
        world: the ranks.
        flat: of the type that travels, one-dimensional and contiguous; what is copied goes there.
        total: of equal size, maybe of higher precision; what is combined goes there. May be `flat` itself.
        chunks: how many both are cut into.
        combine: the hops of this rank whose chunks are combined.
        copy: those behind them.
    """

    def __init__(
        self,
        world: World,
        flat: Tensor,
        total: Tensor,
        *,
        chunks: int,
        combine: Iterable[Hop] = (),
        copy: Iterable[Hop] = (),
    ) -> None:
        self._world, self._flat, self._total = world, flat, total
        size = flat.numel()
        piece = max(1, min(PIECE // flat.element_size(), size))
        self._combined = _cut(tuple(combine), size, chunks, piece)
        self._copied = _cut(tuple(copy), size, chunks, max(1, size))
        self._early = may_begin_early(flat)
        most = max((len(cuts) for _, cuts in self._combined), default=0)
        self._rooms = deque(flat.new_empty(min(most, _AHEAD) if self._early else most, piece))
        self._due = deque(_receives(self._combined, self._copied) if self._early else ())
        self._coming: deque[tuple[Pending, Tensor]] = deque()
        self._leaving: deque[Pending] = deque()

    def combine(self, op: Op) -> None:
        """Walk along the first hops; what is received is combined with what is there.

        Args:
            op: what combines.
        """
        total = self._total
        for hop, cuts in self._combined:
            self._begin(hop, cuts, total, combines=True)
            for _, theirs in cuts:
                if theirs is not None:
                    heard, into = self._heard(), total[theirs]
                    COMBINE[op](into, _typed(heard[: into.numel()], total.dtype), out=into)
                    self._rooms.append(heard)
                    self._listen()

    def copy(self) -> None:
        """Walk along the other hops; what is received takes the place of what was there."""
        for hop, cuts in self._copied:
            self._begin(hop, cuts, self._flat, combines=False)
            for _, theirs in cuts:
                if theirs is not None:
                    self._heard()

    def end(self) -> None:
        """Return when all that was sent has left."""
        while self._leaving:
            self._leaving.popleft().wait()

    def _begin(self, hop: Hop, cuts: Sequence[_Cut], source: Tensor, *, combines: bool) -> None:
        """Begin to send all of a hop, and to receive what can be by now."""
        self._listen()
        for mine, theirs in cuts:
            told = None if mine is None else _typed(source[mine], self._flat.dtype)
            if self._early:
                if told is not None:
                    self._leaving.append(self._world.exchange(told, None, to=hop.to))
            elif theirs is None:
                self._leaving.append(self._world.exchange(told, None, to=hop.to))
            else:
                room = self._room(theirs, combines=combines)
                part = room[: theirs.stop - theirs.start]
                self._coming.append((self._world.exchange(told, part, to=hop.to, source=hop.source), room))

    def _listen(self) -> None:
        """Begin to receive as far ahead as there is room."""
        while self._due:
            source, theirs, combines = self._due[0]
            if combines and not self._rooms:
                return
            self._due.popleft()
            room = self._room(theirs, combines=combines)
            part = room[: theirs.stop - theirs.start]
            self._coming.append((self._world.exchange(None, part, source=source), room))

    def _room(self, theirs: slice, *, combines: bool) -> Tensor:
        return self._rooms.popleft() if combines else self._flat[theirs]

    def _heard(self) -> Tensor:
        """Return, once it is there, the room of what comes next."""
        pending, room = self._coming.popleft()
        pending.wait()
        return room


def copy_along(world: World, hops: Iterable[Hop], flat: Tensor, *, chunks: int) -> None:
    """Walk a schedule; what is received takes the place of what was there.

    Args:
        world: the ranks.
        hops: of this rank.
        flat: one-dimensional and contiguous; changed in place.
        chunks: how many it is cut into.
    """
    walk = Walk(world, flat, flat, chunks=chunks, copy=hops)
    walk.copy()
    walk.end()


def combine_along(
    world: World, hops: Iterable[Hop], total: Tensor, like: Tensor, op: Op, *, chunks: int
) -> None:
    """Walk a schedule; what is received is combined with what is there.

    Args:
        world: the ranks.
        hops: of this rank.
        total: one-dimensional and contiguous; changed in place. May be of higher precision than what travels.
        like: of the type that travels, and of equal size.
        op: what combines.
        chunks: how many `total` is cut into.
    """
    walk = Walk(world, like, total, chunks=chunks, combine=hops)
    walk.combine(op)
    walk.end()


@functools.lru_cache(maxsize=256)  # the same tensors come again with every step
def _cut(hops: tuple[Hop, ...], elements: int, chunks: int, piece: int) -> _Cuts:
    """Return what is sent and received at once in each hop, in pieces of so many elements at most."""
    edges = bounds(elements, chunks)

    def pieces(numbers: Chunks) -> Iterator[slice]:
        for first, end in runs(numbers):  # what is empty is nothing
            for start in range(edges[first], edges[end], piece):
                yield slice(start, min(start + piece, edges[end]))

    return [(hop, list(zip_longest(pieces(hop.send), pieces(hop.receive)))) for hop in hops]


def _receives(combined: _Cuts, copied: _Cuts) -> Iterator[tuple[int | None, slice, bool]]:
    """Yield whom each receive is from, what it is of, and whether it is combined, in their order."""
    for all_cuts, combines in ((combined, True), (copied, False)):
        for hop, cuts in all_cuts:
            for _, theirs in cuts:
                if theirs is not None:
                    yield hop.source, theirs, combines


def may_begin_early(tensor: Tensor) -> bool:
    """Return whether receives may begin before the sends of their hop: not where NCCL would wait for them."""
    return tensor.is_cpu


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def flattened(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in one dimension: its own, or copies of those that lie otherwise."""
    return as_they_lie(tensor).view(-1)


def put_back(flat: Tensor, tensor: Tensor) -> None:
    """Give a tensor the elements that `flattened` returned and that were changed since."""
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))
