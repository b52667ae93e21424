"""A bucket: gradients that travel in one message, with what rides along.

::

    flat   | grad 0 | grad 1 | ... | used 0 | used 1 | ... | steady | passenger |

``used i`` is one where this rank has a gradient for parameter i. After the exchange it tells, without
a message of its own, whether any rank has one: a parameter that none of them used keeps ``grad``
None as in serial training, so that weight decay and momentum leave it alone. ``steady`` is one unless this
rank wants other buckets; only a rank that does looks whether it is alone.

The message may be of a smaller type than the gradients (`compress`): they are rounded as they are copied into
it, and so every rank takes over the same bits. What overflows there becomes infinite on all ranks alike.
"""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.world.world import Pending, World

Kind: TypeAlias = tuple[torch.dtype, torch.device]


class Passenger(Protocol):
    """Numbers that ride along with gradients to be averaged."""

    numel: int

    def board(self, seat: Tensor) -> None:
        """Travel in `seat`, of shape (numel,), from now on."""

    def load(self) -> None:
        """Write this rank's numbers into the seat."""

    def unload(self) -> None:
        """Take over the averages from the seat."""


class Bucket:
    """A persistent message buffer and the parameters whose gradients it carries.

    Args:
        world: the ranks to average over.
        parameters: by name, all of one kind; may be none where only the passenger travels.
        kind: dtype and device of `real` parameters.
        passenger: rides behind the gradients; it must be of the same kind, and the message too.
        message: dtype of the buffer; None is that of the gradients.
    """

    def __init__(
        self,
        world: World,
        parameters: Mapping[str, Tensor],
        *,
        kind: Kind,
        passenger: Passenger | None,
        message: torch.dtype | None = None,
    ) -> None:
        self.has_passenger = passenger is not None
        self._world = world
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._passenger = passenger
        sizes = [real(parameter).numel() for parameter in self._parameters]
        sizes += [len(sizes) + 1, passenger.numel if passenger is not None else 0]
        self._dtype, device = kind
        self._flat = torch.zeros(sum(sizes), dtype=message or self._dtype, device=device)
        *slots, self._used, seat = torch.split(self._flat, sizes)
        self._all_used = torch.ones_like(self._used)
        if passenger is not None:
            passenger.board(seat)
        self._slots = [
            slot.view(real(parameter).shape) for slot, parameter in zip(slots, self._parameters, strict=True)
        ]
        self._missing: list[int] = []
        self._aboard: tuple[list[Tensor], list[Tensor]] = [], []
        self._pending: Pending | None = None

    def send(self, *, steady: bool = True) -> None:
        """Copy the gradients that are there into the buffer and begin to average it."""
        self._aboard = grads, slots = self._present()
        if self._missing or not steady:
            used = [parameter.grad is not None for parameter in self._parameters]
            self._used.copy_(torch.tensor([*used, steady], dtype=torch.float32))
            for index in self._missing:
                self._slots[index].zero_()
            copy_all(slots, grads)
        else:
            copy_all([*slots, self._used], [*grads, self._all_used])
        if self._passenger is not None:
            self._passenger.load()
        self._pending = self._world.average_later(self._flat)

    def wait(self) -> None:
        """Block until the averages are in the buffer."""
        assert self._pending is not None
        self._pending.wait()
        self._pending = None

    def settle(self) -> None:
        """Wait where the bucket is still under way; its buffer may be overwritten then."""
        if self._pending is not None:
            self.wait()

    def unload(self) -> None:
        """Give the averages to the parameters."""
        grads, slots = self._aboard
        self._aboard = [], []  # who sets gradients to None wants their memory back
        copy_all(grads, slots)
        # A rank that used them all need not look at the flags; to look makes it wait for its device.
        used = self._used.tolist() if self._missing else []
        for index in self._missing:
            if used[index] > 0:
                parameter = self._parameters[index]
                parameter.grad = torch.empty_like(parameter)
                real(parameter.grad).copy_(self._slots[index])
        if self._passenger is not None:
            self._passenger.unload()

    def anyone_steady(self) -> bool:
        """Return whether any rank sent `steady`; between `wait` and the next `send`."""
        return self._used[-1].item() > 0

    def _present(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients that are there, and their slots; note which are missing."""
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
        """Return a gradient that cannot be copied as it is."""
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
    """Copy each source into its target, in one call."""
    if targets:
        torch._foreach_copy_(targets, sources)


def kind_of(tensor: Tensor) -> Kind:
    """Return what tensors must have in common to travel in one bucket."""
    return real(tensor).dtype, tensor.device


def real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as one of real numbers; back ends cannot sum complex ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def dense_gradient(name: str, parameter: Tensor) -> Tensor | None:
    """Return the gradient, as real numbers that can be written to.

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
    if grad.is_complex() and (grad.is_conj() or grad.is_neg()):  # not carried out yet: no real view of it
        parameter.grad = grad = grad.resolve_conj().resolve_neg()
    return real(grad)
