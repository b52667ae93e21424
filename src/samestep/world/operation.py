"""What ranks reduce with, and what each of the operations is defined for."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from samestep.base.errors import UsageError

Op: TypeAlias = Literal["sum", "mean", "product", "min", "max"]
OPS: tuple[Op, ...] = get_args(Op)


def headroom(op: Op, dtype: torch.dtype, size: int) -> int:
    """Return what to divide by before a reduction, so that what it sums fits where the result does.

    More than 1 for means of half precision alone. It is a power of two, which costs no bits but those that
    are too small for the type; what is left to divide by is between a half and 1.

    Args:
        op: the operation.
        dtype: of the tensors.
        size: number of ranks.
    """
    is_half = dtype.is_floating_point and dtype.itemsize < 4
    return 1 << (size - 1).bit_length() if op == "mean" and is_half else 1


def as_they_lie(tensor: Tensor) -> Tensor:
    """Return a tensor whose elements lie in memory one after another, as they are: itself, or a copy.

    A conjugate may be the memory of what it is the conjugate of, and a note.
    """
    own = tensor.detach()
    if own.is_conj() or own.is_neg():
        own = own.resolve_conj().resolve_neg()
    return own.contiguous()


def refuse_root(root: int, size: int) -> None:
    """Refuse a rank that is not there.

    Raises:
        UsageError: `root` is none of `size` ranks.
    """
    if not 0 <= root < size:
        raise UsageError(f"there is no rank {root} among {size}: they are 0 .. {size - 1}.")


def refuse(op: Op, dtype: torch.dtype) -> None:
    """Refuse what has no result of this type.

    Raises:
        UsageError: there is no such operation, or not for `dtype`.
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
