"""Averages the gradients of a bucket in one message.

::

    flat   | grad 0 | grad 1 | ... | used 0 | used 1 | ... | flags | payload |

``used i`` is 1 if this rank has a gradient for parameter i. Its average shows, without another message,
whether any rank has one: a parameter that no rank used keeps ``grad`` None as in serial training, so that
weight decay and momentum do not change it. ``flags`` are those of `Flags`; only a rank that has a flag other
than `ORDINARY` reads their averages, for which a GPU must be waited for.

The message may be of a smaller dtype than the gradients (`compressed`): they are rounded when they are copied
into it, so that every rank gets the same bits. A value that overflows becomes infinite on all ranks.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.world.protocol import Work, World

Kind: TypeAlias = tuple[torch.dtype, torch.device]


class Payload(Protocol):
    """Numbers that are averaged in the message of a bucket, such as running statistics."""

    numel: int

    def assign_slot(self, slot: Tensor) -> None:
        """Use `slot`, of shape (numel,), from now on."""

    def pack(self) -> None:
        """Write this rank's numbers into the slot."""

    def unpack(self) -> None:
        """Copy the averages from the slot."""


class Flags(NamedTuple):
    """The state of a rank, sent with its gradients."""

    steady: bool
    """This rank keeps its buckets."""
    flat: bool
    """No backward ran inside the backward of these gradients."""
    stale: bool
    """A gradient has changed since it was sent."""


ORDINARY = Flags(steady=True, flat=True, stale=False)


class Bucket:
    """A persistent message buffer and the parameters whose gradients it carries.

    Args:
        world: the ranks to average over.
        parameters: by name, all of one kind; empty if only the payload is sent.
        kind: dtype and device of `real` parameters.
        payload: sent behind the gradients; payload and message must have the same kind.
        message: dtype of the buffer; None is that of the gradients.
    """

    def __init__(
        self,
        world: World,
        parameters: Mapping[str, Tensor],
        *,
        kind: Kind,
        payload: Payload | None,
        message: torch.dtype | None = None,
    ) -> None:
        self.has_payload = payload is not None
        self._world = world
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._payload = payload
        sizes = [real(parameter).numel() for parameter in self._parameters]
        sizes += [len(sizes) + len(ORDINARY), payload.numel if payload is not None else 0]
        self._dtype, device = kind
        self._flat = torch.zeros(sum(sizes), dtype=message or self._dtype, device=device)
        *slots, self._used, payload_slot = torch.split(self._flat, sizes)
        self._ordinary = self._used.new_tensor([*[True] * len(self._parameters), *ORDINARY])
        if payload is not None:
            payload.assign_slot(payload_slot)
        self._slots = [
            slot.view(real(parameter).shape) for slot, parameter in zip(slots, self._parameters, strict=True)
        ]
        self._missing: list[int] = []
        self._packed: tuple[list[Tensor], list[Tensor]] = [], []
        self._pending: Work | None = None

    def send(self, flags: Flags = ORDINARY) -> None:
        """Copy the existing gradients into the buffer and begin to average it."""
        self._packed = grads, slots = self._present()
        if self._missing or flags != ORDINARY:
            used = [parameter.grad is not None for parameter in self._parameters]
            numbers = torch.tensor([*used, *flags], dtype=torch.float32, device="cpu")
            self._used.copy_(numbers, non_blocking=True)
            for index in self._missing:
                self._slots[index].zero_()
            copy_all(slots, grads)
        else:
            copy_all([*slots, self._used], [*grads, self._ordinary])
        if self._payload is not None:
            self._payload.pack()
        self._pending = self._world.average_later(self._flat)

    def wait(self) -> None:
        """Block until the averages are in the buffer."""
        assert self._pending is not None
        self._pending.wait()
        self._pending = None

    def drain(self) -> None:
        """Wait for a pending average, so that the buffer can be overwritten."""
        if self._pending is not None:
            self.wait()

    def unpack(self) -> None:
        """Copy the averages to the parameters."""
        grads, slots = self._packed
        self._packed = [], []  # setting gradients to None must free their memory
        copy_all(grads, slots)
        # A rank that used all parameters does not need the flags.
        used = self._used.tolist() if self._missing else []
        for index in self._missing:
            if used[index] > 0:
                parameter = self._parameters[index]
                parameter.grad = torch.empty_like(parameter)
                real(parameter.grad).copy_(self._slots[index])
        if self._payload is not None:
            self._payload.unpack()

    def flags_of_any_rank(self) -> Flags:
        """Return which flags any rank sent; valid between `wait` and the next `send`."""
        return Flags(*(average > 0 for average in self._used[-len(ORDINARY) :].tolist()))

    def _present(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the existing gradients and their slots; record which are missing."""
        grads, slots = [], []
        self._missing = []
        for index, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is None:
                self._missing.append(index)
                continue
            if grad.dtype is not self._dtype or grad.layout is not torch.strided:
                grad = self._as_numbers(index)
            grads.append(grad)
            slots.append(self._slots[index])
        return grads, slots

    def _as_numbers(self, index: int) -> Tensor:
        """Return a gradient in a form that can be copied, or raise UsageError."""
        name = self._names[index]
        grad = dense_gradient(name, self._parameters[index])
        assert grad is not None
        if grad.dtype is not self._dtype:
            raise UsageError(
                f"{name} was {self._dtype} when replicate() was called and its gradient is {grad.dtype} "
                "now. Change the dtype of a model before replicate()."
            )
        return grad


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target in one call."""
    if targets:
        torch._foreach_copy_(targets, sources)


def kind_of(tensor: Tensor) -> Kind:
    """Return the dtype and device, which the tensors of a bucket have in common."""
    return real(tensor).dtype, tensor.device


def real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as a view of real numbers, because back ends cannot sum complex numbers.

    Of a lazy conjugate, which has no real view, it is a copy; `dense_gradient` resolves those of gradients.
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def dense_gradient(name: str, parameter: Tensor) -> Tensor | None:
    """Return the gradient as a writable tensor of real numbers; None without a gradient.

    Raises:
        UsageError: the gradient is sparse.
    """
    grad = parameter.grad
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        raise UsageError(
            f"the gradient of {name} is sparse, which has another size on every rank and cannot be averaged "
            "in place. Build its layer with sparse=False."
        )
    if grad.is_complex() and (grad.is_conj() or grad.is_neg()):  # lazy: it has no real view yet
        parameter.grad = grad = grad.resolve_conj().resolve_neg()
    return real(grad)


class InPlaceGradient:
    """A replacement for a bucket of one gradient, which saves copying what does not fit into the cache.

    A message before it shows whether any rank has the gradient, and the flags. In the worlds that this is
    for, whose all-reduces have ended when they return, such a message costs next to nothing.
    """

    has_payload = False

    def __init__(self, world: World, name: str, parameter: Tensor) -> None:
        self._world, self._name, self._parameter = world, name, parameter
        self._used = torch.zeros(1 + len(ORDINARY), device="cpu")

    def send(self, flags: Flags = ORDINARY) -> None:
        """Average the gradient over the ranks, if any has one."""
        grad = dense_gradient(self._name, self._parameter)
        self._used.copy_(torch.tensor([grad is not None, *flags], device="cpu"))
        self._world.all_reduce(self._used)
        if not self._used[0]:
            return
        if grad is None:
            self._parameter.grad = torch.zeros_like(self._parameter)
            grad = real(self._parameter.grad)
        self._world.all_reduce(grad, op="mean")

    def wait(self) -> None:
        """See `Bucket.wait`; `send` has waited."""

    def drain(self) -> None:
        """See `Bucket.drain`; `send` has waited."""

    def unpack(self) -> None:
        """See `Bucket.unpack`; the average is in the gradient."""

    def flags_of_any_rank(self) -> Flags:
        """See `Bucket.flags_of_any_rank`."""
        return Flags(*(ranks > 0 for ranks in self._used[1:].tolist()))


_MESSAGES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def compressed(dtype: torch.dtype, compress: str | None) -> torch.dtype:
    """Return the dtype in which gradients of `dtype` are sent: never a larger one."""
    message = None if compress is None else _MESSAGES.get(compress)
    return dtype if message is None or message.itemsize >= dtype.itemsize else message


def message_bytes(parameters: Iterable[Tensor], compress: str | None = None) -> int | None:
    """Return the bytes of all gradients as they are sent; None if that changes from step to step."""
    if compress == "powersgd":
        return None
    gradients = [real(parameter) for parameter in parameters if parameter.requires_grad]
    return sum(gradient.numel() * compressed(gradient.dtype, compress).itemsize for gradient in gradients)
