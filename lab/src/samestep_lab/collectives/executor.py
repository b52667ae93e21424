"""Executes a schedule on a world's tensors; it contains no algorithm.

Received chunks are combined piece by piece, while the next pieces are on their way::

    piece      0      1      2      3
    network    [----] [----] [----] [----]
    combine           [--]   [--]   [--]   [--]

Chunks that are only copied are received in one piece into their final place. Receives are posted early, those
of later hops too, so that a message never waits for its receiver. That overwrites no data that is still
needed: a chunk is complete only after every rank has sent its share of it.
"""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.ranks.collectives.consistency_check import may_post_receives_early
from samestep.ranks.collectives.shared_memory import bounds
from samestep.ranks.world.operation import COMBINE, Op, is_half
from samestep.ranks.world.protocol import Work, World
from samestep_lab.collectives.schedule import Chunks, Hop, runs

PIECE = 1 << 22
"""Bytes that are combined at once: smaller pieces cost more messages, larger ones leave the cache."""
_BUFFERS = 3
"""Receive buffers, hence pieces on their way at once; a buffer is used again once its piece is combined."""
_Transfer: TypeAlias = tuple[slice | None, slice | None]
"""Elements that are sent, and elements that are received at the same time."""
_Transfers: TypeAlias = Sequence[tuple[Hop, Sequence[_Transfer]]]  # the transfers of each hop


class Execution:
    """One rank's execution of a schedule: first the hops that combine, then those that copy.

    Args:
        world: the ranks.
        flat: one-dimensional and contiguous, of the type that is sent; copied chunks are written to it.
        total: of equal size, maybe of higher precision; combined chunks are written to it. It can be `flat`.
        chunks: number of chunks of both.
        combine: the hops of this rank whose chunks are combined.
        copy: the hops after them.
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
        self._combined = _transfers(tuple(combine), size, chunks, piece)
        self._copied = _transfers(tuple(copy), size, chunks, max(1, size))
        self._early = may_post_receives_early(flat)
        most = max((len(transfers) for _, transfers in self._combined), default=0)
        self._buffers = deque(flat.new_empty(min(most, _BUFFERS) if self._early else most, piece))
        self._due = deque(_receives(self._combined, self._copied) if self._early else ())
        self._receiving: deque[tuple[Work, Tensor]] = deque()
        self._sending: deque[Work] = deque()

    def combine(self, op: Op) -> None:
        """Execute the first hops; received elements are combined with those of `total`."""
        total = self._total
        for hop, transfers in self._combined:
            self._begin(hop, transfers, total, combines=True)
            for _, incoming in transfers:
                if incoming is not None:
                    buffer, into = self._received(), total[incoming]
                    COMBINE[op](into, _typed(buffer[: into.numel()], total.dtype), out=into)
                    self._buffers.append(buffer)
                    self._post_receives()

    def copy(self) -> None:
        """Execute the other hops; received elements replace those of `flat`."""
        for hop, transfers in self._copied:
            self._begin(hop, transfers, self._flat, combines=False)
            for _, incoming in transfers:
                if incoming is not None:
                    self._received()

    def end(self) -> None:
        """Wait until everything is sent."""
        while self._sending:
            self._sending.popleft().wait()

    def _begin(self, hop: Hop, transfers: Sequence[_Transfer], source: Tensor, *, combines: bool) -> None:
        """Begin to send all of a hop, and to receive as far ahead as possible."""
        self._post_receives()
        for outgoing, incoming in transfers:
            sent = None if outgoing is None else _typed(source[outgoing], self._flat.dtype)
            if incoming is not None and not self._early:
                self._receive(incoming, hop.source, combines=combines, sent=sent, to=hop.to)
            elif sent is not None:
                self._sending.append(self._world.exchange(sent, None, dst=hop.to))

    def _post_receives(self) -> None:
        """Begin to receive as far ahead as there are buffers."""
        while self._due:
            source, incoming, combines = self._due[0]
            if combines and not self._buffers:
                return
            self._due.popleft()
            self._receive(incoming, source, combines=combines)

    def _receive(
        self,
        incoming: slice,
        source: int | None,
        *,
        combines: bool,
        sent: Tensor | None = None,
        to: int | None = None,
    ) -> None:
        """Begin to receive into a free buffer, or into the place where elements are copied to."""
        buffer = self._buffers.popleft() if combines else self._flat[incoming]
        part = buffer[: incoming.stop - incoming.start]
        self._receiving.append((self._world.exchange(sent, part, dst=to, src=source), buffer))

    def _received(self) -> Tensor:
        """Return the buffer of the next receive, once it is complete."""
        pending, buffer = self._receiving.popleft()
        pending.wait()
        return buffer


def copy_along(world: World, hops: Iterable[Hop], flat: Tensor, *, chunks: int) -> None:
    """Execute a rank's hops; received elements replace those of `flat`, one-dimensional and contiguous."""
    execution = Execution(world, flat, flat, chunks=chunks, copy=hops)
    execution.copy()
    execution.end()


def combine_along(
    world: World, hops: Iterable[Hop], total: Tensor, like: Tensor, op: Op, *, chunks: int
) -> None:
    """Execute a rank's hops; received elements are combined with those of `total`, in place.

    `total` may be of higher precision than `like`, which has equal size, and the type that is sent. Both are
    one-dimensional and contiguous.
    """
    execution = Execution(world, like, total, chunks=chunks, combine=hops)
    execution.combine(op)
    execution.end()


@functools.lru_cache(maxsize=256)  # every training step has the same tensors
def _transfers(hops: tuple[Hop, ...], elements: int, chunks: int, piece: int) -> _Transfers:
    """Return the elements that each hop sends and receives at once, at most `piece` of them."""
    edges = bounds(elements, chunks)

    def pieces(numbers: Chunks) -> Iterator[slice]:
        for first, end in runs(numbers):  # empty chunks yield nothing
            for start in range(edges[first], edges[end], piece):
                yield slice(start, min(start + piece, edges[end]))

    return [(hop, list(zip_longest(pieces(hop.send), pieces(hop.receive)))) for hop in hops]


def _receives(combined: _Transfers, copied: _Transfers) -> Iterator[tuple[int | None, slice, bool]]:
    """Yield the source rank, the elements, and whether they are combined, of each receive in order."""
    for hops, combines in ((combined, True), (copied, False)):
        for hop, transfers in hops:
            for _, incoming in transfers:
                if incoming is not None:
                    yield hop.source, incoming, combines


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def accumulator(flat: Tensor, divisor: int = 1) -> Tensor:
    """Return the tensor to sum in: a single-precision copy of a half-precision tensor, else `flat` itself.

    `divisor` is from `samestep.ranks.world.operation.headroom`; it is 1 wherever `flat` itself is returned.
    """
    total = flat.float() if is_half(flat.dtype) else flat
    return total.div_(divisor) if divisor > 1 else total
