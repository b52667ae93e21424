"""Defines the World protocol: the ranks of one job, from the view of one of them.

Two mixins implement what follows from other methods (`DerivedWorld`) or from another world (`RelayedWorld`).
In the world of one rank (`SoloWorld`) every collective is the identity.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from samestep.base.errors import Error, WorldError
from samestep.base.place import Place
from samestep.base.renamed import renamed_arguments, warn_renamed
from samestep.ranks.world.operation import Op, check_operation, flattened, is_half, separated

T = TypeVar("T")


class Work(Protocol):
    """Collective under way; its tensors may be read once `wait` has returned."""

    def wait(self) -> object:
        """Block until the result is complete."""


class CompletedWork:
    """Work that is already complete."""

    def wait(self) -> None:
        """Return at once."""


class DeferredWork:
    """Work that a call does when it is waited for."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def wait(self) -> None:
        """See `Work.wait`."""
        self._call()


class World(Protocol):
    """Ranks of one job, from the view of one of them.

    It is passed as an argument, not stored globally. A world of one is a World: no code checks whether it is
    distributed. Every rank calls the collectives, in the same order. Tensors are changed in
    place and must have equal shapes and dtypes on all ranks; they are on `device` or, if the
    back end supports it, on the CPU.
    """

    @property
    def place(self) -> Place:
        """Place of this rank in the job."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0: that of `place`."""

    @property
    def size(self) -> int:
        """Number of ranks: that of `place`."""

    @property
    def device(self) -> torch.device:
        """Device this rank computes on."""

    @property
    def timeout_s(self) -> float:
        """Seconds that a rank waits for another in a message or collective."""

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send `tensor` to rank `dst`; returns when it may be changed again."""

    def recv(self, tensor: Tensor, src: int) -> None:
        """Receive a tensor from rank `src` into `tensor`."""

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """Begin to send `send` to rank `dst` and to receive `receive` from rank `src`, both at once.

        Ranks that send to each other do not wait for each other. Either half may be None. The tensors
        must be contiguous; messages between two ranks arrive in the order in which they were begun.
        """

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Reduce `tensor` over all ranks, in place; equal bits on every rank.

        A mean in half precision does not overflow if the mean itself fits.
        """

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """Begin to sum `tensor` over all ranks, in place; the result is complete after `wait`."""

    def average_later(self, tensor: Tensor) -> Work:
        """Begin to average `tensor` over all ranks, in place; the result is complete after `wait`.

        Each rank divides before the sum, so that the sum does not overflow in half precision.
        """

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Overwrite `tensor` on every rank with that of rank `src`."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in rank order."""

    def sum_on_main(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the sums of tensors of one type over all ranks on rank 0, in new memory; None on the others.

        They do not overflow in half precision if the sums themselves fit.
        """

    def gather_on_main(self, part: Tensor, targets: Sequence[Tensor] | None, most: int) -> None:
        """Copy the `part` of each rank into that of the `targets` on rank 0; they are None on the others.

        All are contiguous tensors of one dimension with up to `most` elements, the same number on all ranks.
        """

    def barrier(self) -> None:
        """Return once every rank has called this."""

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """Return rank `src`'s `value` on every rank."""

    def all_gather_objects(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""

    def sum(self, value: float) -> float:
        """Return the sum of one number over all ranks, in float64."""

    def mean(self, value: float, *, weight: float = 1.0) -> float:
        """Return the mean of one number over all ranks, weighted; a weight of 0 drops the value."""

    def on_main(self, fn: Callable[[], T]) -> T:
        """Run `fn` on rank 0 alone; return its result, or raise its error, on every rank."""

    def main_first(self) -> AbstractContextManager[None]:
        """Run the block on rank 0 first and on the other ranks after it, to fill a shared cache."""

    def print(self, *values: object) -> None:
        """Print on rank 0."""

    def close(self) -> None:
        """Leave the job; the world may not be used afterwards."""


class DerivedWorld:
    """Mixin with the methods of a World that follow from the collectives.

    It also accepts the names that methods and arguments of a World had before 0.2.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("send", "exchange", "broadcast", "broadcast_object"):
            if name in vars(cls):
                setattr(cls, name, renamed_arguments(to="dst", source="src")(vars(cls)[name]))

    @property
    def rank(self: World) -> int:
        """See `World.rank`."""
        return self.place.rank

    @property
    def size(self: World) -> int:
        """See `World.size`."""
        return self.place.size

    def receive(self: World, tensor: Tensor, *, source: int) -> None:
        """Call `World.recv`, under the name that it had before 0.2."""
        warn_renamed("World.receive(source=)", "World.recv(src=)")
        self.recv(tensor, src=source)

    def average_later(self: World, tensor: Tensor) -> Work:
        """See `World.average_later`."""
        tensor.detach().div_(self.place.size)
        return self.all_reduce_later(tensor)

    def sum_on_main(self: World, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """See `World.sum_on_main`; all are in one message."""
        message = torch.cat([*map(flattened, tensors)])
        if is_half(message.dtype):
            self.average_later(message).wait()
            message.mul_(self.place.size)
        else:
            self.all_reduce(message)
        return separated(message, tensors) if self.place.is_main else None

    def gather_on_main(self: World, part: Tensor, targets: Sequence[Tensor] | None, most: int) -> None:
        """See `World.gather_on_main`; shorter parts are padded."""
        missing = most - part.numel()
        gathered = self.all_gather(pad(part, (0, missing)) if missing else part)
        for target, padded in zip(targets or (), gathered, strict=False):
            target.copy_(padded[: target.numel()])

    def sum(self: World, value: float) -> float:
        """See `World.sum`."""
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        self.all_reduce(total)
        return float(total.item())

    def mean(self: World, value: float, *, weight: float = 1.0) -> float:
        """See `World.mean`."""
        # A rank without samples may hold NaN, and 0 * NaN is NaN: it must not be multiplied at all.
        weighted = value * weight if weight else 0.0
        sums = torch.tensor([weighted, weight], dtype=torch.float64, device=self.device)
        self.all_reduce(sums)
        total, weights = sums.tolist()
        return float(total / weights) if weights else float("nan")

    def on_main(self: World, fn: Callable[[], T]) -> T:
        """See `World.on_main`."""
        result: Any = None
        failure: BaseException | None = None
        if self.place.is_main:
            try:
                result = fn()
            except Exception as error:  # noqa: BLE001 - raised again on every rank below
                failure = error
        result, failure = _share(self, result, failure)
        if failure is not None:
            raise failure
        value: T = result
        return value

    @contextmanager
    def main_first(self: World) -> Iterator[None]:
        """See `World.main_first`."""
        if not self.place.is_main:
            _, failure = _share(self, None, None)
            if failure is not None:
                raise failure
            yield
            return
        try:
            yield
        except BaseException as error:
            _share(self, None, error)
            raise
        _share(self, None, None)

    def print(self: World, *values: object) -> None:
        """See `World.print`."""
        if self.place.is_main:
            print(*values, flush=True)  # noqa: T201 - all ranks print here


class RelayedWorld(DerivedWorld):
    """World that forwards every call to another one, `inner`; subclasses override the calls that differ."""

    def __init__(self, inner: World) -> None:
        self.inner = inner
        self.place, self.device = inner.place, inner.device

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`."""
        return self.inner.timeout_s

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self.inner.send(tensor, dst)

    def recv(self, tensor: Tensor, src: int) -> None:
        """See `World.recv`."""
        self.inner.recv(tensor, src)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """See `World.exchange`."""
        return self.inner.exchange(send, receive, dst=dst, src=src)

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        self.inner.all_reduce(tensor, op=op)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`."""
        return self.inner.all_reduce_later(tensor)

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        self.inner.broadcast(tensor, src)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        return self.inner.all_gather(tensor)

    def barrier(self) -> None:
        """See `World.barrier`."""
        self.inner.barrier()

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`."""
        return self.inner.broadcast_object(value, src)

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`."""
        return self.inner.all_gather_objects(value)

    def close(self) -> None:
        """See `World.close`."""
        self.inner.close()


def _share(world: World, result: Any, failure: BaseException | None) -> tuple[Any, BaseException | None]:
    """Return rank 0's result or error on every rank; an error that cannot be sent is sent as text."""
    if world.place.size == 1:
        return result, failure
    packed = b""
    if world.place.is_main:
        # Pickled here, where it can fail before the other ranks wait for what they never get.
        try:
            packed = pickle.dumps((result, None))
        except Exception as error:  # noqa: BLE001 - an object's own pickling can raise anything
            failure = failure or WorldError(f"rank 0 cannot send its result: {_text(error)}")
        if failure is not None:
            packed = _packed_failure(failure)
    packed = world.broadcast_object(packed)
    return (result, failure) if world.place.is_main else pickle.loads(packed)  # noqa: S301 - rank 0's


def _packed_failure(failure: BaseException) -> bytes:
    if isinstance(failure, Error | OSError):
        with suppress(Exception):
            packed = pickle.dumps((None, failure))
            pickle.loads(packed)  # noqa: S301 - fails if the class has other arguments than its base
            return packed
    return pickle.dumps((None, WorldError(f"rank 0 failed: {_text(failure)}")))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class SoloWorld(DerivedWorld):
    """World of a job with one rank. It has no process group and no cost."""

    def __init__(self, *, device: torch.device | str = "cpu", place: Place | None = None) -> None:
        self.place = place if place is not None else Place()
        if self.place.size != 1:
            raise WorldError(f"a SoloWorld cannot stand for {self.place.describe()}; join the job instead")
        self.device = torch.device(device)

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`; there is no other rank to wait for."""
        return 0.0

    def send(self, tensor: Tensor, dst: int) -> None:  # noqa: ARG002 - the protocol's signature
        """Refuse: there is no rank to send to."""
        raise WorldError(f"cannot send to rank {dst}: this is a world of one")

    def recv(self, tensor: Tensor, src: int) -> None:  # noqa: ARG002 - the protocol's signature
        """Refuse: there is no rank to receive from."""
        raise WorldError(f"cannot receive from rank {src}: this is a world of one")

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """Refuse to send or receive: there is no other rank."""
        if send is not None:
            raise WorldError(f"cannot send to rank {dst}: this is a world of one")
        if receive is not None:
            raise WorldError(f"cannot receive from rank {src}: this is a world of one")
        return CompletedWork()

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """Leave `tensor` as it is."""
        check_operation(op, tensor.dtype)

    def all_reduce_later(self, tensor: Tensor) -> Work:  # noqa: ARG002 - the protocol's signature
        """Leave `tensor` as it is."""
        return CompletedWork()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Leave `tensor` as it is."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return a list of one tensor, a copy of `tensor`."""
        return [tensor.clone()]

    def barrier(self) -> None:
        """Return at once."""

    def broadcast_object(self, value: T, src: int = 0) -> T:  # noqa: ARG002 - the protocol's signature
        """Return `value`."""
        return value

    def all_gather_objects(self, value: T) -> list[T]:
        """Return a list that contains only `value`."""
        return [value]

    def close(self) -> None:
        """Do nothing: this world has no open resources."""
