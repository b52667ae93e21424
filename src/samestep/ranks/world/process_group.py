"""Implements a world over torch.distributed's default process group: each rank is a process.

Inside samestep a World is an argument. A user's script may call ``samestep.replicate(model)``, which means
the job that the script is in: one context variable holds that world.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.base import env
from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.hooks.thread_values import bound
from samestep.launchers.detect import detect
from samestep.ranks.hang.peer_waits import PeerWaits
from samestep.ranks.world.device import BACKENDS
from samestep.ranks.world.operation import Op, as_contiguous, check_operation, finish, headroom, put_back
from samestep.ranks.world.protocol import CompletedWork, DerivedWorld, SoloWorld, Work, World

T = TypeVar("T")
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # Gloo has no mean
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class Ending(Protocol):
    """Connections of a rank beside those of its back end."""

    def end(self) -> None:
        """End the connections, from any thread; ranks that wait for them get an error."""

    def close(self) -> None:
        """Close the connections."""


class _Messages:
    """Messages under way, each with its other rank; `world` counts them until `wait` has returned.

    A tensor that is received through a copy on the host is filled by `wait`.
    """

    def __init__(
        self,
        world: "ProcessGroupWorld",
        works: Sequence[tuple[Work, int | None]],
        copies: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        self._world, self._works, self._copies = world, works, copies
        world.under_way += 1

    def wait(self) -> None:
        """See `Work.wait`."""
        for work, peer in self._works:
            self._world.await_message(work, op="exchange", peer=peer)
        for tensor, copy in self._copies:
            tensor.detach().copy_(copy)
        self._world.under_way -= bool(self._works)
        self._works = self._copies = ()


class _Collective:
    """Collective under way."""

    def __init__(self, world: "ProcessGroupWorld", work: Work) -> None:
        self._world, self._work = world, work

    def wait(self) -> None:
        """See `Work.wait`."""
        with self._world.waiting("all_reduce"):
            self._work.wait()


class ProcessGroupWorld(DerivedWorld):
    """One rank of torch.distributed's default group, which must exist.

    `close` destroys the group unless other code created it (`owned`).
    """

    def __init__(self, place: Place, device: torch.device, *, owned: bool = True) -> None:
        in_group = (dist.get_rank(), dist.get_world_size())
        if in_group != (place.rank, place.size):
            raise DetectionError(
                f"the launcher started {place.describe()}, but the process group has rank {in_group[0]} of "
                f"{in_group[1]}. Create the group with samestep.join(), or with the launcher's rank and size."
            )
        self.place = place
        self.device = device
        self._owned = owned
        self.under_way = 0  # number of exchanges under way that have not been waited for
        backends = _backends()
        self._backend = backends.get(device.type, "")
        self._object_device = None if "cpu" in backends else device
        self._waits = PeerWaits(place) if self._backend == "gloo" else None
        self._connections: list[Ending] = []
        self.direct: World | None = None
        """The world of these ranks with direct connections, or this one without any; None before that."""

    @property
    def uses_gloo(self) -> bool:
        """Whether Gloo carries all tensors of this world, which are on the CPU."""
        return self._waits is not None and self.device.type == "cpu"

    def share_end(self, connections: "Ending") -> None:
        """Close these connections with the world, and end them where this rank ends those of Gloo."""
        self._connections.append(connections)
        if self._waits is not None:
            self._waits.end_too(connections.end)

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`."""
        group: Any = dist.group.WORLD
        options = group._get_backend(self.device).options  # noqa: SLF001 - no public spelling
        return float(options._timeout.total_seconds())  # noqa: SLF001

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self._message(dist.isend, self._sendable(as_contiguous(tensor)), op="send", peer=dst)

    def recv(self, tensor: Tensor, src: int) -> None:
        """See `World.recv`."""
        with _as_contiguous(tensor) as contiguous:
            copy = self._sendable(contiguous)
            self._message(dist.irecv, copy, op="recv", peer=src)
            if copy is not contiguous:
                contiguous.copy_(copy)

    def _sendable(self, tensor: Tensor) -> Tensor:
        """Return a tensor that the back end can send to one rank: Gloo needs one on the host."""
        return tensor if self._waits is None or _is_on_host(tensor) else tensor.to("cpu", copy=True)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """See `World.exchange`."""
        if send is None and receive is None:
            return CompletedWork()
        if self._waits is None:
            return self._exchange_together(send, receive, dst, src)
        # torch's isend and irecv make many checks before they call these functions, at every message.
        group, works, peer, copies = dist.group.WORLD, [], src, []
        assert group is not None
        try:
            if receive is not None and src is not None:
                buffer = self._sendable(_plain(receive))
                copies = [] if _is_on_host(receive) else [(receive, buffer)]
                works.append((group.recv([buffer], src, 0), src))
            if send is not None and dst is not None:
                peer = dst
                works.append((group.send([self._sendable(_plain(send))], dst, 0), dst))
        except RuntimeError as error:
            self._waits.explain_start("exchange", peer, error)
            raise
        return _Messages(self, works, copies)

    def _exchange_together(
        self, send: Tensor | None, receive: Tensor | None, dst: int | None, src: int | None
    ) -> Work:
        """Begin both halves at once: NCCL would wait for the first before it began the second."""
        halves: list[tuple[Any, Tensor, int | None]] = []
        if receive is not None:
            halves.append((dist.irecv, _bytes(receive), src))
        if send is not None:
            halves.append((dist.isend, _bytes(send), dst))
        begun = dist.batch_isend_irecv([dist.P2POp(*half) for half in halves])
        return _Messages(self, [(work, halves[0][2]) for work in begun])

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        room = headroom(op, tensor.dtype, self.place.size)
        with _as_contiguous(tensor) as contiguous:
            if room > 1:
                contiguous.div_(room)
            with self.waiting("all_reduce"):
                dist.all_reduce(contiguous, op=_OPS[op])
            finish(contiguous, op, self.place.size, room)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`."""
        if as_contiguous(tensor).data_ptr() != tensor.data_ptr():
            self.all_reduce(tensor)
            return CompletedWork()
        with self.waiting("all_reduce"):
            return _Collective(self, dist.all_reduce(tensor, async_op=True))

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        with _as_contiguous(tensor) as contiguous, self.waiting("broadcast"):
            dist.broadcast(_bytes(contiguous), src=src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        contiguous = as_contiguous(tensor)
        gathered = [torch.empty_like(contiguous) for _ in range(self.place.size)]
        with self.waiting("all_gather"):
            dist.all_gather([_bytes(received) for received in gathered], _bytes(contiguous))
        return gathered

    def barrier(self) -> None:
        """See `World.barrier`."""
        # In a group of the script, NCCL otherwise guesses the device from the rank's number.
        devices = [self.device.index] if self._backend == "nccl" else None
        with self.waiting("barrier"):
            dist.barrier(device_ids=devices)

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`; the value is pickled."""
        box = [value]
        with self.waiting("broadcast_object_list"):
            dist.broadcast_object_list(box, src=src, device=self._object_device)
        return box[0]

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`; the values are pickled."""
        values: list[Any] = [None] * self.place.size
        with self.waiting("all_gather_object"):
            dist.all_gather_object(values, value)
        return values

    def waiting(self, op: str) -> AbstractContextManager[None]:
        """Return the context in which to wait for all ranks; see `PeerWaits.waiting`."""
        return nullcontext() if self._waits is None else self._waits.waiting(op)

    def _message(self, begin: Callable[..., Any], tensor: Tensor, *, op: str, peer: int) -> None:
        """Start a message and wait until it is over."""
        try:
            work = begin(tensor, peer)
        except RuntimeError as error:
            if self._waits is not None:
                self._waits.explain_start(op, peer, error)
            raise
        self.await_message(work, op=op, peer=peer)

    def await_message(self, work: Work | None, *, op: str, peer: int | None) -> None:
        """Return when a message is over.

        `op` is ``send``, ``recv`` or ``exchange``, and `peer` the other rank.

        Raises:
            OutOfStep: ranks send to each other, and none receives.
            PeerLost: a rank is gone, or did not join the operation in time.
        """
        assert work is not None  # this rank is in the group
        waits = self._waits
        if waits is None:
            work.wait()
            return
        call = waits.begin(op, peer, alone=op != "exchange" and not self.under_way)
        try:
            work.wait()
        except RuntimeError as error:
            waits.explain(call, error)
            raise
        finally:
            waits.end()

    def close(self) -> None:
        """Destroy the process group if this world owns it.

        Gloo's threads end with the last reference to the group. One that frees the tensors of its last
        collective waits for the interpreter's lock, and aborts the process if the interpreter ends meanwhile
        ("terminate called without an active exception"). So neither samestep nor torch keeps a reference.
        """
        if self._waits is not None:
            self._waits.close()
        while self._connections:
            self._connections.pop().close()
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.is_cpu


def let_groups_end() -> None:
    """Keep torch from holding each default group created from now on until this process ends.

    The first `DistributedDataParallel` imports torch's compiler, and with it functions that have the default
    group of that moment as a default argument. Imported before there is a group, they hold none.
    """
    import_module("torch.distributed.nn.functional")


@contextmanager
def _as_contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a contiguous tensor, and copy it back after the block: Gloo treats any memory as contiguous."""
    contiguous = as_contiguous(tensor)
    yield contiguous
    put_back(contiguous, tensor)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor as bytes: not every back end sends every type."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # one element may have any stride
    return flat.view(torch.uint8)


def rank_in_job(world: World) -> tuple[int, int]:
    """Return this process's rank in the whole job, of which `world` may be a part, and the job's size."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return world.place.rank, world.place.size


def adopt() -> World:
    """Return the world this process already belongs to, without joining one.

    Raises:
        DetectionError: the launcher started several workers, but there is no process group.
    """
    place = detect(env.snapshot()).place
    if dist.is_available() and dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        if (place.rank, place.size) != (rank, size):  # set up by the script: only the group has its rank
            place = Place(rank=rank, size=size, launcher="process group")
        return ProcessGroupWorld(place, _device_of_group(), owned=False)
    if place.size > 1:
        raise DetectionError(
            f"{place.launcher} started this process as {place.describe()}, but it has not joined the others "
            "and would do the whole work alone. Put the training inside `with samestep.join() as world:`."
        )
    return SoloWorld()


def _backends() -> dict[str, str]:
    """Return the back end of the default group for each type of device.

    The name that `torch.distributed.get_backend` returns is no back end's for a group that has several, or
    whose script has left the choice to torch.
    """
    return dict(entry.split(":") for entry in dist.get_backend_config().split(","))


def _device_of_group() -> torch.device:
    """Return the accelerator whose own back end the default group has; the CPU without any."""
    backends = _backends()
    for kind, backend in BACKENDS.items():
        if kind != "cpu" and backends.get(kind) == backend:
            module = torch.get_device_module(kind)
            if module.is_available():  # torch's own choice names the back ends of missing devices, too
                return torch.device(kind, module.current_device())
    return torch.device("cpu")


_WORLD: ContextVar[World] = ContextVar("samestep_world")


def entered(world: World) -> AbstractContextManager[None]:
    """Return a context in which `world` is the current one."""
    return bound(_WORLD, world)


def current() -> World:
    """Return the world that this context has joined.

    A process group that the script set up itself counts as joined. Without one, a process that its
    launcher started as one of several is refused: it would train alone, as one of N duplicates of one run.

    Raises:
        DetectionError: the launcher started several workers and none of them has joined.
    """
    world = _WORLD.get(None)
    return adopt() if world is None else world
