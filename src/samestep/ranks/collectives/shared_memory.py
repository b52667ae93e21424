"""Runs collectives of ranks on one host through memory that they share, if they can share any.

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

Hostnames do not prove that ranks share a host: containers of one host have several, and containers of several
hosts can have the same. So rank 0 makes a file without a name in the shared-memory file system, and sends its
process id, the file descriptor and random content; a rank that reads this content there shares the memory.
When the last process ends, however it ends, the memory is freed.
"""

import errno
import mmap
import os
import platform
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.base.machine.description import cpu_share, enough_for_all
from samestep.base.units import bytes_text
from samestep.ranks.collectives.call_signature import NOTHING, SIGNATURE_BYTES, check_same_call, signature
from samestep.ranks.collectives.semaphores import SIZE, Semaphores, initialize, own_process
from samestep.ranks.hang.flight_recorder import SHARED_MEMORY, Progress, progress_of
from samestep.ranks.world.operation import (
    Folding,
    Op,
    as_contiguous,
    check_operation,
    check_root,
    flattened,
    put_back,
    reduce_in_rank_order,
    separated,
)
from samestep.ranks.world.process_group import rank_in_job
from samestep.ranks.world.protocol import CompletedWork, RelayedWorld, Work, World

PIECE = 1 << 20
"""Bytes of a piece: two or three of them fit in a core's own cache."""
SMALL = 1 << 18
"""Bytes, of all ranks' tensors together, up to which each rank reduces all of it, for one handover instead of
two."""
_APART = 1 << 18
"""Bytes from which one of several tensors is summed alone. A guess: a message of its own costs about as much
as a copy of so many bytes."""
_MOST_VIEWS = 512  # sizes and types whose views are kept; all are dropped when there are more: a guess
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
        self.by_part = [[[slot[part] for part in self.parts] for slot in half] for half in self.halves]
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
        with torch.inference_mode(mode=False):  # it may begin, but not end, within inference mode
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
            contiguous = as_contiguous(tensor)
            gathered = [torch.empty_like(contiguous) for _ in range(self._size)]
            flat = [flat_tensor.view(-1) for flat_tensor in gathered]
            for part in pieces(contiguous):
                piece = contiguous.view(-1)[part]
                halves = self._halves(piece)
                halves[self._rank].copy_(piece)
                self._handover()
                for target, half in zip(flat, halves, strict=True):
                    target[part] = half
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

    def sum_on_main(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """See `World.sum_on_main`; large ones are summed alone, without a copy into a message."""
        small = [tensor for tensor in tensors if tensor.nbytes < _APART]
        together = self._summed_on_main(torch.cat([*map(flattened, small)])) if small else None
        of_small = iter(() if together is None else separated(together, small))
        totals = [
            next(of_small, None) if tensor.nbytes < _APART else self._summed_on_main(tensor)
            for tensor in tensors
        ]
        return None if self._rank else [total for total in totals if total is not None]

    def _summed_on_main(self, tensor: Tensor) -> Tensor | None:
        """Return the sum of a tensor over all ranks on rank 0, and None on the others."""
        with self._begin("sum_on_main", tensor):
            flat = flattened(tensor)
            whole = None if self._rank else torch.empty_like(tensor, memory_format=torch.contiguous_format)
            total = None if whole is None else whole.view(-1)
            if flat.nbytes * self._size <= SMALL:
                halves = self._halves(flat)
                if self._rank:
                    halves[self._rank].copy_(flat)
                self._handover()
                if total is not None:
                    reduce_in_rank_order("sum", [flat, *halves[1:]], total)
            else:
                for part in pieces(flat):
                    self._sum_piece(flat[part], None if total is None else total[part])
        return whole

    def gather_on_main(self, part: Tensor, targets: Sequence[Tensor] | None, most: int) -> None:
        """See `World.gather_on_main`."""
        with self._begin("gather_on_main", part[:0], f"gather_on_main of up to {most}"):
            whole_slots = self._views_for(part.dtype, PIECE // part.element_size(), 0)
            for where in pieces(part, most):
                halves = whole_slots.halves[self._half]
                if self._rank:
                    piece = part[where]
                    halves[self._rank][: len(piece)] = piece
                self._handover()
                for rank, target in enumerate(targets or ()):
                    if rank:
                        piece = target[where]
                        piece.copy_(halves[rank][: len(piece)])
        if targets is not None:
            targets[0].copy_(part)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """Run `samestep.parallel.exact.summation_tree.fold`."""
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
        with self._begin("barrier", NOTHING):
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
        shares = [piece[part] for part in views.parts]
        summands = self._handed_over(slots, shares, load)
        if load is not torch.Tensor.copy_:
            load(shares[rank], shares[rank])
        summands[rank] = shares[rank]
        reduce_in_rank_order(op, summands, shares[rank])
        slots[rank][rank].copy_(shares[rank])  # no rank has read this share of this rank's slot
        self._handover()
        for number, part in enumerate(shares):
            if number != rank:
                part.copy_(slots[number][number])

    def _sum_piece(self, piece: Tensor, total: Tensor | None) -> None:
        """Sum one piece into `total` on rank 0: each rank computes its share, and rank 0 copies them."""
        views, rank = self._views_of(piece), self._rank
        slots = views.by_part[self._half]
        shares = [piece[part] for part in views.parts]
        summands = self._handed_over(slots, shares, torch.Tensor.copy_)
        summands[rank] = shares[rank]
        # No rank has read this share of this rank's slot.
        reduce_in_rank_order("sum", summands, slots[rank][rank] if total is None else total[views.parts[0]])
        self._handover()
        if total is not None:
            for number, part in enumerate(views.parts):
                if number:
                    total[part] = slots[number][number]

    def _handed_over(
        self, slots: Sequence[Sequence[Tensor]], shares: Sequence[Tensor], load: _Load
    ) -> list[Tensor]:
        """Give the other ranks their shares of a piece; return those in all slots that this rank reduces."""
        for number, share in enumerate(shares):
            if number != self._rank:  # no other rank reads this rank's share
                load(slots[self._rank][number], share)
        self._handover(swap=False)
        return [of_rank[self._rank] for of_rank in slots]

    def _fold_whole(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        """Fold a small tensor: each rank computes all of it, for one handover instead of two."""
        halves = [view.halves[self._half] for view in views]
        for row, piece in enumerate(pieces):
            halves[row][self._rank].copy_(piece)
        self._handover()
        folding([halves[row][rank] for rank, count in enumerate(counts) for row in range(count)], pieces[0])

    def _fold_piece(
        self, pieces: list[Tensor], views: list[_Views], counts: Sequence[int], folding: Folding
    ) -> None:
        """Fold one piece of each part: each rank computes its share, and copies the results of the others."""
        this_rank, parts = self._rank, views[0].parts
        slots = [view.by_part[self._half] for view in views]
        for row, piece in enumerate(pieces):
            for rank, part in enumerate(parts):
                if rank != this_rank:
                    slots[row][this_rank][rank].copy_(piece[part])
        self._handover(swap=False)
        shares = [piece[parts[this_rank]] for piece in pieces]
        folding(
            [
                shares[row] if rank == this_rank else slots[row][rank][this_rank]
                for rank, count in enumerate(counts)
                for row in range(count)
            ],
            shares[0],
        )
        slots[0][this_rank][this_rank].copy_(shares[0])  # no rank has read this share of this rank's slot
        self._handover()
        for rank, part in enumerate(parts):
            if rank != this_rank:
                pieces[0][part].copy_(slots[0][rank][rank])

    def _halves(self, piece: Tensor) -> list[Tensor]:
        """Return the views of a piece in all ranks' slots, in the current half."""
        return self._views_of(piece).halves[self._half]

    def _views_of(self, piece: Tensor, begin: int = 0) -> _Views:
        """Return the views of a piece from byte `begin` of the slots on."""
        return self._views_for(piece.dtype, piece.numel(), begin)

    def _views_for(self, dtype: torch.dtype, count: int, begin: int) -> _Views:
        key = dtype, count, begin
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            with torch.inference_mode(mode=False):  # they are also written to outside of inference mode
                views = self._views[key] = _Views(self._slots[:, :, begin:], *key[:2])
        return views

    def _begin(self, name: str, tensor: Tensor, call: str | None = None) -> AbstractContextManager[object]:
        """Write this rank's call signature; return the context in which to run the call."""
        self._signature = signature(self._rank, call or name, tensor)
        self._memory[self._signatures[self._signature_half][self._rank]] = self._signature
        return self._progress.enter(name)

    def _compare(self) -> None:
        """Compare the ranks' call signatures, and swap the signature halves."""
        sent, self._signature = self._signature, b""
        signatures = [self._memory[where] for where in self._signatures[self._signature_half]]
        self._signature_half = 1 - self._signature_half
        for received in signatures:
            check_same_call(sent, received)

    def _handover(self, *, swap: bool = True) -> None:
        """Wait until all ranks are here; then swap the halves of the slots."""
        self._semaphores.post()
        self._semaphores.wait()
        if self._signature:
            self._compare()
        if swap:
            self._half = 1 - self._half


def pieces(tensor: Tensor, most: int | None = None) -> list[slice]:
    """Return the elements of each piece of a tensor; an empty one is one piece, for which ranks wait.

    `most` is the number of elements of the longest rank's tensor where it is not that of all.
    """
    elements = PIECE // max(1, tensor.element_size())
    count = tensor.numel() if most is None else most
    return [slice(at, at + elements) for at in range(0, max(1, count), elements)]


def bounds(elements: int, chunks: int) -> list[int]:
    """Return the first element of each chunk, and the end of the last; chunk sizes differ by at most one.

    >>> bounds(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [elements * chunk // chunks for chunk in range(chunks + 1)]


FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - shared memory is what is wanted
_MARK = 32  # bytes of the random content, by which a rank recognizes the memory
_printed: set[str] = set()  # reasons against shared memory that this process has printed


def on_one_host(world: World, *, timeout_s: float | None = None) -> World:
    """Return a world whose collectives use shared memory; `world` itself where its ranks cannot share any.

    All ranks call this. `timeout_s` limits the wait for another rank, by default to that of `world`.

    If the ranks are processes of one host, rank 0 prints the reason, once.
    """
    rank, size = world.place.rank, world.place.size
    if isinstance(world, OneHostWorld):
        return world
    if size == 1 or world.device.type != "cpu" or platform.system() != "Linux":
        return world
    own_rank, job_size = rank_in_job(world)
    gathered = world.all_gather_objects((own_process(), gethostname(), cpu_share(), own_rank))
    processes, hosts, shares, ranks = (list(each) for each in zip(*gathered, strict=True))
    if len(set(processes)) < size:  # ranks are threads of one process
        return world
    try:
        memory = segment(world, bytes_needed(size))
    except NoSharedMemory as reason:
        if len(set(hosts)) == 1 and world.place.is_main:
            _print_once(str(reason))
        return world
    if world.place.is_main:
        initialize(memory, size)
    timeout_s = world.timeout_s if timeout_s is None else timeout_s
    semaphores = Semaphores(
        memory, processes, rank=rank, may_spin=enough_for_all(shares), timeout_s=timeout_s
    )
    world.barrier()
    progress = progress_of(ranks, job_size, SHARED_MEMORY)
    shared = SharedMemory(memory, rank=rank, size=size, semaphores=semaphores, progress=progress)
    return OneHostWorld(world, shared)


_ELSEWHERE = f"has no access to the file of rank 0 in {FILE_SYSTEM}, as in separate containers"


class NoSharedMemory(Exception):  # noqa: N818 - names the state
    """The ranks have no shared memory; the message has the reason."""


def segment(world: World, size: int) -> mmap.mmap:
    """Return `size` bytes of memory that all ranks share, filled with zeros.

    All ranks call this. All pages are allocated now, so that a later write cannot fail.

    Raises:
        NoSharedMemory: the ranks cannot share memory; on all ranks, with the same reason.
    """
    file, offered = _offer(size) if world.place.is_main else (None, "")
    try:
        offered = world.broadcast_object(offered)
        if isinstance(offered, str):
            raise NoSharedMemory(offered)
        mapped = _map(offered, size, file=file)
        reasons = world.all_gather_objects(mapped if isinstance(mapped, str) else "")
    finally:
        if file is not None:
            os.close(file)
    if isinstance(mapped, str) or any(reasons):
        rank, reason = next((rank, reason) for rank, reason in enumerate(reasons) if reason)
        raise NoSharedMemory(f"rank {rank} {reason}")
    if world.place.is_main:
        mapped[:_MARK] = bytes(_MARK)
    world.barrier()
    return mapped


@dataclass(frozen=True, slots=True)
class _Offer:
    """A file of rank 0 in shared memory."""

    path: Path
    mark: bytes  # its first bytes
    device: int  # the number of the file system


def _offer(size: int) -> tuple[int | None, _Offer | str]:
    """Return a new file and its description; or None and the reason."""
    try:
        file = _make(size)
    except OSError as error:
        return None, _why_not(size, error)
    return file, _Offer(_path(file), os.pread(file, _MARK, 0), os.fstat(file).st_dev)


def _make(size: int) -> int:
    """Make the file; return its descriptor."""
    file = os.open(FILE_SYSTEM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, secrets.token_bytes(_MARK), 0)
    except OSError:
        os.close(file)
        raise
    return file


def _why_not(size: int, error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"{FILE_SYSTEM}: {error.strerror}"
    held = os.statvfs(FILE_SYSTEM)
    free, total = (bytes_text(blocks * held.f_frsize) for blocks in (held.f_bavail, held.f_blocks))
    return f"{FILE_SYSTEM} has {free} free of {total}, and {bytes_text(size)} are needed"


def _path(file: int) -> Path:
    """Return the path under which processes of this host and PID namespace open this process's file."""
    return Path(f"/proc/{os.getpid()}/fd/{file}")


def _map(offer: _Offer, size: int, *, file: int | None = None) -> mmap.mmap | str:
    """Return the memory of rank 0's file, or why there is none; rank 0 has it open as `file`."""
    try:
        # The path also leads to a file in a file system that is mounted for rank 0 only.
        if FILE_SYSTEM.stat().st_dev != offer.device:
            return _ELSEWHERE
        with ExitStack() as stack:
            number = stack.enter_context(offer.path.open("r+b")).fileno() if file is None else file
            mapped = mmap.mmap(number, size)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOMEM:
            return f"may not map {bytes_text(size)} (ulimit -v)"
        return _ELSEWHERE
    return mapped if mapped[:_MARK] == offer.mark else _ELSEWHERE


def _print_once(reason: str) -> None:
    if reason not in _printed:
        _printed.add(reason)
        sys.stderr.write(
            f"samestep: shared memory is not used: {reason}. The process group's back end carries the "
            "tensors.\n"
        )


class OneHostWorld(RelayedWorld):
    """World whose collectives use shared memory; `inner` carries objects, and tensors that memory cannot."""

    def __init__(self, inner: World, memory: SharedMemory) -> None:
        super().__init__(inner)
        self._memory = memory

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        if is_plain(tensor):
            self._memory.all_reduce(tensor, op=op)
        else:
            self._by_back_end(f"all_reduce({op})", tensor).all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; it runs to the end here, faster than the back end starts it."""
        if not is_plain(tensor):
            return self._by_back_end("all_reduce(sum)", tensor).all_reduce_later(tensor)
        self._memory.all_reduce(tensor)
        return CompletedWork()

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`; it runs to the end here, like `all_reduce_later`."""
        if not is_plain(tensor):
            return self._by_back_end("average", tensor).average_later(tensor)
        self._memory.average(tensor)
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        check_root(src, self.place.size)
        if is_plain(tensor):
            self._memory.broadcast(tensor, src)
        else:
            self._by_back_end(f"broadcast from {src}", tensor).broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        if not is_plain(tensor):
            return self._by_back_end("all_gather", tensor).all_gather(tensor)
        return self._memory.all_gather(tensor)

    def agree(self, call: str, tensor: Tensor) -> None:
        """Return if all ranks make the same call; see `samestep.ranks.collectives.consistency_check`."""
        self._memory.agree(call, tensor)

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], folding: Folding) -> None:
        """See `samestep.parallel.exact.summation_tree`."""
        self._memory.fold(parts, counts, folding)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self._memory.barrier()

    def _by_back_end(self, call: str, tensor: Tensor) -> World:
        """Return the world that runs a call which shared memory cannot, after comparing it across ranks.

        Without the comparison, a rank that makes another call would wait in shared memory forever.
        """
        self._memory.agree(f"{call} by the back end", tensor)
        return self.inner


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is in the memory of the host, as numbers with strides."""
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype is not torch.bool
