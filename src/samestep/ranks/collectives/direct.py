"""Collectives of small tensors by direct connections between all ranks, and the choice of what carries them.

=========================== ======================================================
ranks that use CPUs         what carries their small tensors (`low_latency`)
=========================== ======================================================
of one host                 shared memory, see `shared_memory`
of several, at most `RANKS` direct connections up to 1 MiB, else the back end
others                      the back end
=========================== ======================================================

A tensor that is small, or that two ranks reduce, is sent to all ranks, and each of them reduces all of it:
one latency. A larger one is divided into a chunk per rank, which that rank reduces and sends to all: two
latencies, and the 2(N-1)/N tensors of a ring::

    small     0 <-> 1, 0 <-> 2, 1 <-> 2: whole tensors         each rank has a+b+c
    larger    0 <-> 1, 0 <-> 2, 1 <-> 2: a chunk for each      rank r has the r-th chunk of a+b+c
              0 <-> 1, 0 <-> 2, 1 <-> 2: these chunks          each rank has a+b+c

Sums are in rank order, so all ranks have equal bits. Each call begins with the ranks' call signatures, which
are compared before a tensor is used.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samestep.ranks.collectives.call_signature import NOTHING, SIGNATURE_BYTES, check_same_call, signature
from samestep.ranks.collectives.peer_connections import Connections, NotConnected, connect_ranks
from samestep.ranks.collectives.shared_memory import PIECE, bounds, is_plain, on_one_host, pieces
from samestep.ranks.hang.flight_recorder import DIRECT, Progress, progress_of
from samestep.ranks.world.operation import (
    Op,
    as_contiguous,
    check_operation,
    flattened,
    put_back,
    reduce_in_rank_order,
)
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import DeferredWork, RelayedWorld, Work, World

SMALL = 1 << 16
"""Bytes, of the tensors that a rank receives together, up to which each rank reduces all of them: a guess at
where the time of a second message is that of the bytes."""


class DirectCollectives:
    """One rank's collectives by direct connections, for tensors in the host's memory.

    An error of a connection is a `RuntimeError`, as with torch's back ends.
    """

    def __init__(self, connections: Connections, *, rank: int, size: int, progress: Progress) -> None:
        self._connections, self._progress = connections, progress
        self._rank, self._size = rank, size
        self._peers = [peer for peer in range(size) if peer != rank]
        self._inbox = torch.empty(size, SIGNATURE_BYTES + PIECE, dtype=torch.uint8, device="cpu")
        """The last message of each rank, behind its signature."""
        self._views = [memoryview(message.numpy()) for message in self._inbox]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes and dtypes, in rank order."""
        with self._progress.enter("all_gather"):
            contiguous, call = as_contiguous(tensor), signature(self._rank, "all_gather", tensor)
            gathered = [torch.empty_like(contiguous) for _ in range(self._size)]
            flat = [flat_tensor.view(-1) for flat_tensor in gathered]
            for part in pieces(contiguous):
                received = self._received([contiguous.view(-1)[part]] * self._size, call)
                for target, piece in zip(flat, received, strict=True):
                    target[part] = piece
            return gathered

    def barrier(self) -> None:
        """Return once every rank has called this."""
        with self._progress.enter("barrier"):
            self._received([NOTHING] * self._size, signature(self._rank, "barrier", NOTHING))

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place, to equal bits on every rank."""
        with self._progress.enter("all_reduce"):
            flat, call = flattened(tensor), signature(self._rank, f"all_reduce({op})", tensor)
            for part in pieces(flat):
                self._reduce(flat[part], op, call)
            put_back(flat, tensor)

    def _reduce(self, flat: Tensor, op: Op, call: bytes) -> None:
        if self._size == 2 or flat.nbytes * (self._size - 1) <= SMALL:
            reduce_in_rank_order(op, self._received([flat] * self._size, call), flat)
            return
        edges = bounds(flat.numel(), self._size)
        chunks = [flat[edges[rank] : edges[rank + 1]] for rank in range(self._size)]
        chunk = chunks[self._rank]
        reduce_in_rank_order(op, self._received(chunks, call), chunk)
        self._copy_chunks(chunk, chunks)

    def _received(self, sends: Sequence[Tensor], call: bytes) -> list[Tensor]:
        """Send a flat tensor to each rank, behind the call's signature, and return those of all ranks.

        They have the size of the one at this rank's place, and are valid until the next call.
        """
        sent = sends[self._rank]
        end = SIGNATURE_BYTES + sent.nbytes
        self._exchange(
            {rank: [memoryview(call), _bytes(sends[rank])] for rank in self._peers},
            {rank: self._views[rank][:end] for rank in self._peers},
            checked=SIGNATURE_BYTES,
            check=lambda received: check_same_call(call, bytes(received)),
        )
        return [
            sent if rank == self._rank else self._inbox[rank, SIGNATURE_BYTES:end].view(sent.dtype)
            for rank in range(self._size)
        ]

    def _copy_chunks(self, chunk: Tensor, chunks: Sequence[Tensor]) -> None:
        """Send this rank's chunk to all ranks, and receive theirs."""
        sent = [_bytes(chunk)]
        self._exchange(dict.fromkeys(self._peers, sent), {rank: _bytes(chunks[rank]) for rank in self._peers})

    def _exchange(self, *messages: Mapping[int, Any], **checks: Any) -> None:
        try:
            self._connections.exchange(*messages, **checks)
        except OSError as error:
            raise RuntimeError(str(error)) from error


def _bytes(flat: Tensor) -> memoryview:
    view: Any = flat.view(torch.uint8).numpy()
    return memoryview(view)


MOST = 1 << 20
"""Largest tensor in bytes; from there on Gloo takes as long."""
MOST_LATER = 1 << 18
"""Largest tensor in bytes of an all-reduce to wait for later: Gloo sends a larger one meanwhile."""
RANKS = 16
"""Most ranks with direct connections: each rank has one to each other. A guess."""


def low_latency(world: World) -> World:
    """Return the world of the same ranks whose small messages arrive first; all ranks call this.

    It is `world` itself where the back end is the only way.
    """
    near = on_one_host(world)
    return near if near is not world else by_connections(world)


def by_connections(world: World) -> World:
    """Return a world whose ranks have direct connections; `world` itself where they cannot have any.

    All ranks call this. If the ranks cannot be connected, rank 0 prints the reason.
    """
    if not isinstance(world, ProcessGroupWorld) or not world.uses_gloo or world.place.size > RANKS:
        return world
    if world.direct is None:
        world.direct = _connected(world)
    return world.direct


def separates_gradients(world: World) -> bool:
    """Return whether batch norm may communicate in a backward that sends gradients meanwhile.

    Direct connections carry the sums of batch norm, and Gloo the gradients, so neither waits for the other.
    """
    return isinstance(world, DirectWorld)


def _connected(world: ProcessGroupWorld) -> World:
    rank, size = world.place.rank, world.place.size
    try:
        sockets = connect_ranks(world)
    except NotConnected as reason:
        if world.place.is_main:
            sys.stderr.write(
                f"samestep: direct connections are not used: {reason}. Gloo carries all tensors.\n"
            )
        return world
    connections = Connections(rank, sockets, timeout_s=world.timeout_s)
    world.share_end(connections)
    progress = progress_of(range(size), size, DIRECT)
    return DirectWorld(world, DirectCollectives(connections, rank=rank, size=size, progress=progress))


class DirectWorld(RelayedWorld):
    """World whose small messages use direct connections; `inner` carries large ones, and objects."""

    def __init__(self, inner: ProcessGroupWorld, collectives: DirectCollectives) -> None:
        super().__init__(inner)
        self._waiting, self._collectives = inner.waiting, collectives

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        if _is_small(tensor, MOST):
            self.reduce_directly(tensor, op)
        else:
            self.inner.all_reduce(tensor, op=op)

    def reduce_directly(self, tensor: Tensor, op: Op) -> None:
        """Reduce a tensor of any size by the direct connections."""
        check_operation(op, tensor.dtype)
        with self._waiting("all_reduce"):
            self._collectives.all_reduce(tensor, op=op)

    def gather_directly(self, tensor: Tensor) -> list[Tensor]:
        """Gather tensors of any size by the direct connections."""
        with self._waiting("all_gather"):
            return self._collectives.all_gather(tensor)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; see `average_later` for small ones."""
        if not _is_small(tensor, MOST_LATER):
            return self.inner.all_reduce_later(tensor)
        return DeferredWork(partial(self.reduce_directly, tensor, "sum"))

    def average_later(self, tensor: Tensor) -> Work:
        """See `World.average_later`; a small tensor is averaged by `wait`.

        So gradients that are ready at different times on the ranks, within backward, cannot come between the
        messages of batch norm there, which all ranks have to send in one order.
        """
        if not _is_small(tensor, MOST_LATER):
            return self.inner.average_later(tensor)
        return DeferredWork(partial(self.reduce_directly, tensor, "mean"))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        return self.gather_directly(tensor) if _is_small(tensor, MOST) else self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        with self._waiting("barrier"):
            self._collectives.barrier()


def _is_small(tensor: Tensor, most: int) -> bool:
    return tensor.nbytes <= most and is_plain(tensor)
