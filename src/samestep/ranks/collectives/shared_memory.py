"""Runs collectives of ranks on one host through their shared memory.

Each rank has a slot of two halves, used alternately. A tensor is processed in pieces that stay in the cache::

                 rank 0's slot        rank 1's slot
    copy in      [    | a1 ]          [ b0 |    ]      the parts that other ranks reduce
    handover     -----------------------------------   all ranks have copied
    reduce       [ a0+b0 | a1 ]       [ b0 | a1+b1 ]   rank r the r-th part of the piece, in rank order
    handover     -----------------------------------   all ranks have reduced
    copy out     a1+b1                a0+b0            the parts that other ranks have reduced

A small tensor is copied in completely, and each rank reduces all of it: one handover instead of two. Sums are
in rank order, which gives equal bits on all ranks; half precisions are summed in single precision.

A half is written again two handovers later, when every rank has signaled that it has read it. Beside its slot
each rank has two call signatures, used alternately; a call's first handover compares them.
"""

import mmap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.ranks.collectives.call_counter import Progress
from samestep.ranks.collectives.call_signature import SIGNATURE_BYTES, check_same_call, signature
from samestep.ranks.collectives.semaphores import SIZE, Semaphores
from samestep.ranks.world.operation import (
    Folding,
    Op,
    as_contiguous,
    flattened,
    put_back,
    reduce_in_rank_order,
)

PIECE = 1 << 20
"""Bytes of a piece: two or three of them fit in a core's own cache."""
SMALL = 1 << 18
"""Bytes, of all ranks' tensors together, up to which each rank reduces all of it."""
_NOTHING = torch.empty(0, device="cpu")
_MOST_VIEWS = 512
_Load: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Writes the second argument, maybe scaled, into the first."""


def bytes_needed(size: int) -> int:
    """Return the bytes of shared memory that `size` ranks need."""
    return _slots_begin(size) + 2 * PIECE * size


def _signatures_begin(size: int) -> int:
    return SIZE * size * size


def _slots_begin(size: int) -> int:
    page = mmap.PAGESIZE
    return -(-(_signatures_begin(size) + 2 * SIGNATURE_BYTES * size) // page) * page


class _Views:
    """Views of the slots for pieces of one size and type; kept, because a view costs more than a copy.

    `slots` has the shape (2, ranks, bytes); a piece of `count` elements takes the first bytes.
    """

    def __init__(self, slots: Tensor, dtype: torch.dtype, count: int) -> None:
        size = slots.shape[1]
        # The elements that each rank reduces.
        self.parts = [slice(*pair) for pair in pairwise(bounds(count, size))]
        self.halves = [list(half) for half in slots[:, :, : count * dtype.itemsize].view(dtype)]
        """By half and rank."""
        self.by_part = [[[one[part] for part in self.parts] for one in half] for half in self.halves]
        """By half, rank and part."""


class SharedMemory:
    """One rank's collectives through shared memory.

    The semaphores are at the beginning of `memory`, which has `bytes_needed` bytes that all ranks share.
    """

    def __init__(
        self, memory: mmap.mmap, *, rank: int, size: int, semaphores: Semaphores, progress: Progress
    ) -> None:
        self._rank, self._size, self._semaphores = rank, size, semaphores
        self._progress = progress
        self._memory, self._signature_half, self._signature = memory, 0, b""
        slots = torch.frombuffer(memory, dtype=torch.uint8)[_slots_begin(size) :]
        self._slots = slots[: 2 * PIECE * size].view(2, size, PIECE)
        self._half = 0
        self._views: dict[tuple[torch.dtype, int, int], _Views] = {}
        begin = _signatures_begin(size)
        starts = [begin + SIGNATURE_BYTES * number for number in range(2 * size)]
        signatures = [slice(start, start + SIGNATURE_BYTES) for start in starts]
        self._signatures = signatures[:size], signatures[size:]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes and dtypes, in rank order."""
        with self._begin("all_gather", tensor):
            own = as_contiguous(tensor)
            gathered = [torch.empty_like(own) for _ in range(self._size)]
            flat = [one.view(-1) for one in gathered]
            for part in pieces(own):
                piece = own.view(-1)[part]
                halves = self._halves(piece)
                halves[self._rank].copy_(piece)
                self._handover()
                for one, half in zip(flat, halves, strict=True):
                    one[part] = half
        return gathered

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Overwrite `tensor` on every rank with that of rank `src`."""
        with self._begin("broadcast", tensor, f"broadcast from {src}"):
            flat = flattened(tensor)
            for part in pieces(flat):
                halves = self._halves(flat[part])
                if self._rank == src:
                    halves[src].copy_(flat[part])
                self._handover()
                if self._rank != src:
                    flat[part] = halves[src]
            put_back(flat, tensor)

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place, to equal bits on every rank."""
        with self._begin("all_reduce", tensor, f"all_reduce({op})"):
            self._all_reduce(tensor, op, torch.Tensor.copy_)

    def average(self, tensor: Tensor) -> None:
        """Average `tensor` over all ranks, in place; each rank divides as it copies, before the sum."""
        with self._begin("average", tensor):
            self._all_reduce(tensor, "sum", self._divided)

    def _divided(self, target: Tensor, source: Tensor) -> Tensor:
        return torch.div(source, self._size, out=target)

    def _all_reduce(self, tensor: Tensor, op: Op, load: _Load) -> None:
        flat = flattened(tensor)
        if flat.nbytes * self._size <= SMALL:
            halves = self._halves(flat)
            load(halves[self._rank], flat)
            self._handover()
            reduce_in_rank_order(op, halves, flat)
        else:
            for part in pieces(flat):
                self._reduce_piece(flat[part], op, load)
        put_back(flat, tensor)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """Run `samestep.ranks.collectives.custom_reduction.fold`."""
        first, rows = parts[0], max(counts)
        with self._begin("fold", first):
            stride = PIECE // rows // SIZE * SIZE  # bytes of a slot for each part
            elements = stride // first.element_size()
            is_small = first.nbytes * rows * self._size <= SMALL
            for start in range(0, first.numel(), elements):
                pieces = [part[start : start + elements] for part in parts]
                views = [self._views_of(pieces[0], begin=row * stride) for row in range(rows)]
                if is_small:
                    self._fold_whole(pieces, views, counts, folding)
                else:
                    self._fold_piece(pieces, views, counts, folding)

    def barrier(self) -> None:
        """Return once every rank has called this."""
        with self._begin("barrier", _NOTHING):
            self._handover()

    def agree(self, call: str, tensor: Tensor) -> None:
        """Return if every rank makes the same call with a tensor of the same shape and type.

        Raises:
            OutOfStep: the calls differ; on all ranks.
        """
        with self._begin(call, tensor):
            self._handover()

    def _reduce_piece(self, piece: Tensor, op: Op, load: _Load) -> None:
        """Reduce one piece, like `_fold_piece` with one part per rank, but faster."""
        views, rank = self._views_of(piece), self._rank
        slots = views.by_part[self._half]
        mine = [piece[part] for part in views.parts]
        for number, part in enumerate(mine):
            if number != rank:  # no other rank reads this rank's share
                load(slots[rank][number], part)
        self._handover(swap=False)
        summands = [of_rank[rank] for of_rank in slots]
        if load is not torch.Tensor.copy_:
            load(mine[rank], mine[rank])
        summands[rank] = mine[rank]
        reduce_in_rank_order(op, summands, mine[rank])
        slots[rank][rank].copy_(mine[rank])  # no rank has read this share of this rank's slot
        self._handover()
        for number, part in enumerate(mine):
            if number != rank:
                part.copy_(slots[number][number])

    def _fold_whole(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        """Fold a small tensor: each rank computes all of it, for one handover instead of two."""
        halves = [one.halves[self._half] for one in views]
        for row, piece in enumerate(pieces):
            halves[row][self._rank].copy_(piece)
        self._handover()
        folding([halves[row][rank] for rank, count in enumerate(counts) for row in range(count)], pieces[0])

    def _fold_piece(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        """Fold one piece of each part: each rank computes its share, and copies the results of the others."""
        own, parts = self._rank, views[0].parts
        slots = [one.by_part[self._half] for one in views]
        for row, piece in enumerate(pieces):
            for rank, part in enumerate(parts):
                if rank != own:
                    slots[row][own][rank].copy_(piece[part])
        self._handover(swap=False)
        mine = [piece[parts[own]] for piece in pieces]
        folding(
            [
                mine[row] if rank == own else slots[row][rank][own]
                for rank, count in enumerate(counts)
                for row in range(count)
            ],
            mine[0],
        )
        slots[0][own][own].copy_(mine[0])  # no rank has read this share of this rank's slot
        self._handover()
        for rank, part in enumerate(parts):
            if rank != own:
                pieces[0][part].copy_(slots[0][rank][rank])

    def _halves(self, piece: Tensor) -> list[Tensor]:
        """Return the views of a piece in all ranks' slots, in the current half."""
        return self._views_of(piece).halves[self._half]

    def _views_of(self, piece: Tensor, begin: int = 0) -> _Views:
        """Return the views of a piece from byte `begin` of the slots on."""
        key = piece.dtype, piece.numel(), begin
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            with torch.inference_mode(mode=False):  # they are also written to outside of inference mode
                views = self._views[key] = _Views(self._slots[:, :, begin:], *key[:2])
        return views

    def _begin(self, name: str, tensor: Tensor, call: str | None = None) -> Progress:
        """Write this rank's call signature; return the context in which to run the call."""
        self._progress.enter(name)
        self._signature = signature(self._rank, call or name, tensor)
        self._memory[self._signatures[self._signature_half][self._rank]] = self._signature
        return self._progress

    def _compare(self) -> None:
        """Compare the ranks' call signatures, and swap the signature halves."""
        mine, self._signature = self._signature, b""
        signatures = [self._memory[where] for where in self._signatures[self._signature_half]]
        self._signature_half = 1 - self._signature_half
        for other in signatures:
            check_same_call(mine, other)

    def _handover(self, *, swap: bool = True) -> None:
        """Wait until all ranks are here; then swap the halves of the slots."""
        self._semaphores.post()
        self._semaphores.wait()
        if self._signature:
            self._compare()
        if swap:
            self._half = 1 - self._half


def pieces(tensor: Tensor) -> list[slice]:
    """Return the elements of each piece of a tensor; none of an empty one."""
    elements = PIECE // max(1, tensor.element_size())
    return [slice(at, at + elements) for at in range(0, tensor.numel(), elements)]


def bounds(elements: int, chunks: int) -> list[int]:
    """Return the first element of each chunk, and the end of the last; chunk sizes differ by at most one.

    >>> bounds(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [elements * chunk // chunks for chunk in range(chunks + 1)]
