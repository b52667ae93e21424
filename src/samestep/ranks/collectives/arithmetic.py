"""Defines how two tensors are combined by each operation, and the accumulator of half precisions."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.ranks.world.operation import Op

Folding: TypeAlias = Callable[[list[Tensor], Tensor], object]
"""Combines several tensors, and writes the result into the last argument, which may be one of them."""

COMBINE: Mapping[Op, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def accumulator(flat: Tensor, divisor: int = 1) -> Tensor:
    """Return the tensor to sum in: a single-precision copy of a half-precision tensor, else `flat` itself.

    Args:
        flat: the tensor to sum; unchanged.
        divisor: from `headroom`; it is 1 wherever `flat` itself is returned.
    """
    is_half = flat.dtype.is_floating_point and flat.element_size() < 4
    total = flat.float() if is_half else flat
    return total.div_(divisor) if divisor > 1 else total


def finish(total: Tensor, op: Op, size: int, divisor: int = 1) -> None:
    """Turn the sum of a mean into the mean, in place; leave other operations as they are.

    Args:
        total: the combination of all ranks' tensors.
        op: the operation.
        size: the number of ranks.
        divisor: by which `accumulator` has divided each tensor.
    """
    if op == "mean":
        total.div_(size / divisor)
