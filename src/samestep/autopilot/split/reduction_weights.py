"""Holds the divisors of means without reading them from a device.

A number of elements is known from shapes. The total weight of labels, or the sum of a mask, is a tensor that
the device may not have computed yet. It stays a tensor: the ranks' means are combined on the device, by
`samestep.autopilot.split.weighted_means`.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samestep.autopilot.state.saved_state import version_of


@dataclass(frozen=True, slots=True)
class Weight:
    """The divisor of a mean; weights of equal origin are the same number, and are compared without a read."""

    value: float | Tensor = field(compare=False, repr=False)
    """A number that the host knows, or a tensor of one element that depends on labels or a mask."""
    origin: Hashable
    """The number, or the tensors and operations that `value` is computed from."""

    @classmethod
    def of(cls, number: float) -> "Weight":
        """Return the weight that is this number."""
        return cls(float(number), float(number))

    @classmethod
    def at(cls, factor: Tensor) -> "Weight":
        """Return the weight in a tensor of one element, whose memory must last until weights are compared."""
        if is_python_number(factor):
            return cls.of(factor.item())
        return cls(factor, origin_of(factor))

    @classmethod
    def of_labels(cls, total: Tensor, target: Tensor, classes: Tensor | None, ignored: int) -> "Weight":
        """Return the total weight of `target`, given the weights of the classes and the ignored label."""
        by_class = None if classes is None else origin_of(classes)
        return cls(total, ("labels", origin_of(target), by_class, ignored))

    def times(self, other: "Weight") -> "Weight":
        """Return the product of two weights."""
        if isinstance(self.value, float) and isinstance(other.value, float):
            return Weight.of(self.value * other.value)
        return Weight(_scalar(self.value) * _scalar(other.value), ("product", self.origin, other.origin))

    def reciprocal(self) -> "Weight":
        """Return 1 divided by this weight, which is infinite if this weight is 0."""
        if isinstance(self.value, float):
            return Weight.of(1 / self.value if self.value else math.inf)
        return Weight(self.value.detach().double().reciprocal(), ("reciprocal", self.origin))

    def read(self) -> float:
        """Return the number; the host waits for the device if it is a tensor."""
        return float(self.value)

    def on(self, device: torch.device) -> Tensor:
        """Return the weight as a float64 tensor of shape () on a device, without waiting for that device."""
        if isinstance(self.value, float):
            # A new tensor of a number is filled on the device; a tensor of a list is copied from the host.
            return torch.full((), self.value, dtype=torch.float64, device=device)
        value = self.value.detach().reshape(())
        return value.to(device, torch.float64, non_blocking=device.type != "cpu")


ONE = Weight.of(1.0)
_SMALLER = {
    torch.float64: torch.zeros((), dtype=torch.float16, device="cpu"),
    torch.int64: torch.zeros((), dtype=torch.int8, device="cpu"),
}
"""The types of torch's tensors of Python numbers, each with a tensor of a smaller type of its kind."""


def is_python_number(tensor: Tensor) -> bool:
    """Return whether torch has made a tensor from a Python number, such as 2 in ``loss / 2``.

    Such a tensor is on the host, whichever device computes. It differs from a tensor of the script by its
    part in type promotion: it does not widen a smaller type of its kind.
    """
    small = _SMALLER.get(tensor.dtype)
    if small is None or tensor.dim() or tensor.device.type != "cpu":
        return False
    return torch.result_type(tensor, small) == small.dtype


def origin_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors of the same memory, as long as nothing writes to it."""
    layout = tuple(tensor.shape), tensor.stride(), tensor.dtype
    return "tensor", tensor.data_ptr(), *layout, version_of(tensor)


def _scalar(value: float | Tensor) -> Any:
    """Return a number, or the number of a tensor in double precision."""
    return value if isinstance(value, float) else value.detach().reshape(()).double()
