"""Defines the reduction operations and the types that each of them supports."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from samestep.base.errors import UsageError

Op: TypeAlias = Literal["sum", "mean", "product", "min", "max"]
OPS: tuple[Op, ...] = get_args(Op)


def headroom(op: Op, dtype: torch.dtype, size: int) -> int:
    """Return the divisor before a reduction, with which the sum cannot overflow if the result does not.

    It is more than 1 only for means in half precision. It is a power of two, so that only bits too small for
    the type are lost; the remaining divisor, after the sum, is between a half and 1.

    Args:
        op: the operation.
        dtype: type of the tensors.
        size: number of ranks.
    """
    is_half = dtype.is_floating_point and dtype.itemsize < 4
    return 1 << (size - 1).bit_length() if op == "mean" and is_half else 1


def as_they_lie(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor with resolved conjugate and negative bits: the tensor itself, or a copy.

    torch may represent a conjugate by the memory of the original tensor and a flag.
    """
    own = tensor.detach()
    if own.is_conj() or own.is_neg():
        own = own.resolve_conj().resolve_neg()
    return own.contiguous()


def refuse_root(root: int, size: int) -> None:
    """Refuse a rank that does not exist.

    Raises:
        UsageError: `root` is not one of the `size` ranks.
    """
    if not 0 <= root < size:
        raise UsageError(f"there is no rank {root} among {size}: they are 0 .. {size - 1}.")


def refuse(op: Op, dtype: torch.dtype) -> None:
    """Refuse an operation that has no result of this type.

    Raises:
        UsageError: the operation does not exist, or not for `dtype`.
    """
    if op not in OPS:
        raise UsageError(f"no operation {op!r}: there are {', '.join(OPS)}.")
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise UsageError(
            f"the mean of {dtype} is no {dtype}: reduce with 'sum' and divide, or "
            "make the tensor floating-point."
        )
    if op in ("min", "max") and dtype.is_complex:
        raise UsageError(f"{dtype} has no order, so no {op!r}: reduce torch.view_as_real(tensor).")
