"""Collectives of ranks that share a host's memory.

Each rank has a slot of two halves, used in turns. A tensor goes through in pieces that stay in the cache::

                 rank 0's slot        rank 1's slot
    copy in      [    | a1 ]          [ b0 |    ]      what others reduce
    handover     -----------------------------------   each knows that all have copied
    reduce       [ a0+b0 | a1 ]       [ b0 | a1+b1 ]   rank r the r-th part of the piece, in rank order
    handover     -----------------------------------
    copy out     a1+b1                a0+b0            what others have reduced

A small tensor is copied in whole, and each rank reduces all of it: one handover instead of two. Sums are made
in rank order everywhere, so that all ranks have equal bits; half precisions are summed in single precision.

A half is written again two handovers later: by then every rank has told that it has read it. Beside its
slots each rank has two lines, used in turns, in which it says what it calls; a call's first handover compares
them.
"""

import mmap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.collectives.arithmetic import COMBINE, Folding, finish
from samestep.collectives.line import LINE, alike, line, told_apart
from samestep.collectives.progress import Progress
from samestep.collectives.semaphores import SIZE, Semaphores
from samestep.world.operation import Op, as_they_lie

PIECE = 1 << 20
"""Bytes of a piece: two or three of them stay in a processor's own cache."""
SMALL = 1 << 18
"""Bytes, of all ranks' tensors together, up to which each rank reduces all itself."""
_NOTHING = torch.empty(0)
_HALF = (torch.float16, torch.bfloat16)
_MOST_VIEWS = 512
_Load: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Writes into its first argument what a rank puts into its slot of its second one."""


def bytes_needed(size: int) -> int:
    """Return the bytes that `size` ranks need of shared memory."""
    return _slots_begin(size) + 2 * PIECE * size


def _lines_begin(size: int) -> int:
    return SIZE * size * size


def _slots_begin(size: int) -> int:
    page = mmap.PAGESIZE
    return -(-(_lines_begin(size) + 2 * LINE * size) // page) * page


class _Views:
    """What a piece of one size and type finds in the slots: made once, because views cost more than copies.

    Args:
        slots: (2, ranks, bytes), of which a piece takes the first.
        dtype: of the piece.
        count: its elements.
    """

    def __init__(self, slots: Tensor, dtype: torch.dtype, count: int) -> None:
        size = slots.shape[1]
        bounds = [count * rank // size for rank in range(size + 1)]
        self.parts = [slice(*pair) for pair in pairwise(bounds)]
        """Which elements each rank reduces."""
        self.halves = [list(half) for half in slots[:, :, : count * dtype.itemsize].view(dtype)]
        """By half and rank."""
        self.cut = [[[one[part] for part in self.parts] for one in half] for half in self.halves]
        """By half, rank and part."""


class SharedMemory:
    """One rank's way into the shared memory.

    Args:
        memory: `bytes_needed` bytes that all ranks share.
        rank: of this process.
        size: number of ranks.
        semaphores: at the beginning of `memory`.
        progress: of this process among the ranks.
    """

    def __init__(
        self, memory: mmap.mmap, *, rank: int, size: int, semaphores: Semaphores, progress: Progress
    ) -> None:
        self._rank, self._size, self._semaphores = rank, size, semaphores
        self._progress = progress
        self._memory, self._turn, self._said = memory, 0, b""
        whole = torch.frombuffer(memory, dtype=torch.uint8)[_slots_begin(size) :]
        self._slots = whole[: 2 * PIECE * size].view(2, size, PIECE)
        self._half = 0
        self._views: dict[tuple[torch.dtype, int, int], _Views] = {}
        begin = _lines_begin(size)
        starts = [begin + LINE * number for number in range(2 * size)]
        lines = [slice(start, start + LINE) for start in starts]
        self._lines = lines[:size], lines[size:]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes and dtypes, in rank order."""
        with self._begin("all_gather", tensor):
            own = as_they_lie(tensor)
            gathered = [torch.empty_like(own) for _ in range(self._size)]
            flat = [one.view(-1) for one in gathered]
            for part in _pieces(own):
                halves = self._copy_in(own.view(-1)[part])
                self._handover()
                for one, half in zip(flat, halves, strict=True):
                    one[part] = half
        return gathered

    def broadcast(self, tensor: Tensor, *, source: int) -> None:
        """Overwrite `tensor` on every rank with that of rank `source`."""
        with self._begin("broadcast", tensor, f"broadcast from {source}"):
            flat = as_they_lie(tensor).view(-1)
            for part in _pieces(flat):
                halves = self._halves(flat[part])
                if self._rank == source:
                    halves[source].copy_(flat[part])
                self._handover()
                if self._rank != source:
                    flat[part] = halves[source]
            _put_back(flat, tensor)

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place; equal bits on every rank."""
        with self._begin("all_reduce", tensor, f"all_reduce({op})"):
            self._all_reduce(tensor, op, torch.Tensor.copy_)

    def average(self, tensor: Tensor) -> None:
        """Average `tensor` over all ranks, in place; each rank divides as it copies, before the sum."""
        with self._begin("average", tensor):
            self._all_reduce(tensor, "sum", self._divided)

    def _divided(self, target: Tensor, source: Tensor) -> Tensor:
        return torch.div(source, self._size, out=target)

    def _all_reduce(self, tensor: Tensor, op: Op, load: _Load) -> None:
        flat = as_they_lie(tensor).view(-1)
        if flat.nbytes * self._size <= SMALL:
            halves = self._halves(flat)
            load(halves[self._rank], flat)
            self._handover()
            _reduce(halves, op, flat)
        else:
            for part in _pieces(flat):
                self._reduce_piece(flat[part], op, load)
        _put_back(flat, tensor)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """Overwrite this rank's first part with what `folding` makes of the parts of all ranks, in order.

        Args:
            parts: of this rank; see `samestep.collectives.fold`.
            counts: how many each rank has.
            folding: how.
        """
        first, rows = parts[0], max(counts)
        with self._begin("fold", first):
            room = PIECE // rows // SIZE * SIZE  # bytes of a slot for each part
            elements = room // first.element_size()
            is_small = first.nbytes * rows * self._size <= SMALL
            for start in range(0, first.numel(), elements):
                pieces = [part[start : start + elements] for part in parts]
                views = [self._views_of(pieces[0], begin=row * room) for row in range(rows)]
                if is_small:
                    self._fold_whole(pieces, views, counts, folding)
                else:
                    self._fold_piece(pieces, views, counts, folding)

    def barrier(self) -> None:
        """Return once every rank has called this."""
        with self._begin("barrier", _NOTHING):
            self._handover()

    def agree(self, call: str, tensor: Tensor) -> None:
        """Return if every rank makes the same call with such a tensor, whatever it then goes through.

        Raises:
            OutOfStep: they call different things; on all ranks.
        """
        with self._begin(call, tensor):
            self._handover()

    def _reduce_piece(self, piece: Tensor, op: Op, load: _Load) -> None:
        views, rank = self._views_of(piece), self._rank
        cut = views.cut[self._half]
        mine = [piece[part] for part in views.parts]
        for number, part in enumerate(mine):
            if number != rank:  # which nobody else reduces
                load(cut[rank][number], part)
        self._handover(turn=False)
        summands = [of_rank[rank] for of_rank in cut]
        if load is not torch.Tensor.copy_:
            load(mine[rank], mine[rank])
        summands[rank] = mine[rank]
        _reduce(summands, op, mine[rank])
        cut[rank][rank].copy_(mine[rank])  # nobody has read this part of this rank's slot
        self._handover()
        for number, part in enumerate(mine):
            if number != rank:
                part.copy_(cut[number][number])

    def _fold_whole(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        """Each rank makes all of it, for one handover instead of two."""
        halves = [one.halves[self._half] for one in views]
        for row, piece in enumerate(pieces):
            halves[row][self._rank].copy_(piece)
        self._handover()
        folding([halves[row][rank] for rank, count in enumerate(counts) for row in range(count)], pieces[0])

    def _fold_piece(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        own, parts = self._rank, views[0].parts
        cut = [one.cut[self._half] for one in views]
        for row, piece in enumerate(pieces):
            for rank, part in enumerate(parts):
                if rank != own:
                    cut[row][own][rank].copy_(piece[part])
        self._handover(turn=False)
        mine = [piece[parts[own]] for piece in pieces]
        folding(
            [
                mine[row] if rank == own else cut[row][rank][own]
                for rank, count in enumerate(counts)
                for row in range(count)
            ],
            mine[0],
        )
        cut[0][own][own].copy_(mine[0])  # nobody has read this part of this rank's slot
        self._handover()
        for rank, part in enumerate(parts):
            if rank != own:
                pieces[0][part].copy_(cut[0][rank][rank])

    def _copy_in(self, piece: Tensor) -> list[Tensor]:
        halves = self._halves(piece)
        halves[self._rank].copy_(piece)
        return halves

    def _halves(self, piece: Tensor) -> list[Tensor]:
        """Return what all ranks' slots hold of a piece, in the half whose turn it is."""
        return self._views_of(piece).halves[self._half]

    def _views_of(self, piece: Tensor, begin: int = 0) -> _Views:
        """Return the views of a piece that lies in the slots from byte `begin` on."""
        key = piece.dtype, piece.numel(), begin
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            with torch.inference_mode(mode=False):  # they are written to outside of it too
                views = self._views[key] = _Views(self._slots[:, :, begin:], *key[:2])
        return views

    def _begin(self, name: str, tensor: Tensor, call: str | None = None) -> Progress:
        """Say what this rank calls; return within what to do it."""
        self._progress.enter(name)
        self._said = line(self._rank, call or name, tensor)
        self._memory[self._lines[self._turn][self._rank]] = self._said
        return self._progress

    def _compare(self) -> None:
        """Compare what the ranks have said, and let the other lines' turn be.

        Raises:
            OutOfStep: they call different things; on all ranks.
        """
        said, self._said = self._said, b""
        lines = [self._memory[where] for where in self._lines[self._turn]]
        self._turn = 1 - self._turn
        for other in lines:
            if not alike(said, other):
                raise OutOfStep(told_apart(said, other))

    def _handover(self, *, turn: bool = True) -> None:
        """Return once all ranks have come here; then the other half's turn is."""
        self._semaphores.post()
        self._semaphores.wait()
        if self._said:
            self._compare()
        if turn:
            self._half = 1 - self._half


def _pieces(tensor: Tensor) -> list[slice]:
    elements = PIECE // max(1, tensor.element_size())
    return [slice(at, at + elements) for at in range(0, tensor.numel(), elements)]


def _reduce(parts: list[Tensor], op: Op, out: Tensor) -> None:
    """Reduce in rank order into `out`, which may be one of the parts."""
    combine = COMBINE[op]
    if out.dtype in _HALF:
        parts, total = [part.float() for part in parts], torch.empty_like(out, dtype=torch.float32)
    else:
        total = out if len(parts) == 2 else torch.empty_like(out)
    combine(parts[0], parts[1], out=total)
    for part in parts[2:]:
        combine(total, part, out=total)
    finish(total, op, len(parts))
    if total is not out:
        out.copy_(total)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))
