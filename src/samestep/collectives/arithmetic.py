"""How two tensors become one, and what a mean makes of a sum."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from samestep.world.operation import Op

Folding: TypeAlias = Callable[[list[Tensor], Tensor], object]
"""Makes one tensor of several, and writes it into the last argument, which may be one of them."""

COMBINE: Mapping[Op, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def wide(flat: Tensor, room: int = 1) -> Tensor:
    """Return what sums of this type are made in: single precision for half ones, else itself.

    Args:
        flat: what is summed; stays as it is.
        room: what to divide by, as `headroom` has it: 1 but for half precisions, of which this is a copy.
    """
    is_half = flat.dtype.is_floating_point and flat.element_size() < 4
    total = flat.float() if is_half else flat
    return total.div_(room) if room > 1 else total


def finish(total: Tensor, op: Op, size: int, room: int = 1) -> None:
    """Make the result of what was combined, in place.

    Args:
        total: of all ranks.
        op: the operation.
        size: the number of ranks.
        room: what was divided by before.
    """
    if op == "mean":
        total.div_(size / room)
