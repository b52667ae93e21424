"""Defines the reduction operations: the supported types, the arithmetic, and flat views of tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from samestep.base.errors import UsageError

Op: TypeAlias = Literal["sum", "mean", "product", "min", "max"]
OPS: tuple[Op, ...] = get_args(Op)
Folding: TypeAlias = Callable[[list[Tensor], Tensor], object]
"""Combines several tensors, and writes the result into the last argument, which may be one of them."""

COMBINE: Mapping[Op, Callable[..., Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""The function of two tensors of each operation; `finish` turns the sum of a mean into the mean."""


def check_operation(op: Op, dtype: torch.dtype) -> None:
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


def check_root(root: int, size: int) -> None:
    """Refuse a rank that does not exist.

    Raises:
        UsageError: `root` is not one of the `size` ranks.
    """
    if not 0 <= root < size:
        raise UsageError(f"there is no rank {root} among {size}: they are 0 .. {size - 1}.")


def is_half(dtype: torch.dtype) -> bool:
    """Return whether a type is a floating-point type below single precision."""
    return dtype.is_floating_point and dtype.itemsize < 4


def headroom(op: Op, dtype: torch.dtype, size: int) -> int:
    """Return the divisor before a reduction over `size` ranks, such that no partial sum overflows.

    It is more than 1 only for means in half precision. It is a power of two, so that only bits too small for
    the type are lost; the remaining divisor, after the sum, is between a half and 1.
    """
    return 1 << (size - 1).bit_length() if op == "mean" and is_half(dtype) else 1


def finish(total: Tensor, op: Op, size: int, divisor: int = 1) -> None:
    """Turn the sum of a mean over `size` ranks, each divided by `divisor` before, into the mean, in place."""
    if op == "mean":
        total.div_(size / divisor)


def reduce_in_rank_order(op: Op, parts: list[Tensor], out: Tensor) -> None:
    """Reduce the ranks' parts in rank order into `out`, which may be one of them.

    Half precisions are summed in single precision.
    """
    combine = COMBINE[op]
    if is_half(out.dtype):
        parts, total = [part.float() for part in parts], torch.empty_like(out, dtype=torch.float32)
    else:
        total = out if len(parts) == 2 else torch.empty_like(out)
    combine(parts[0], parts[1], out=total)
    for part in parts[2:]:
        combine(total, part, out=total)
    finish(total, op, len(parts))
    if total is not out:
        out.copy_(total)


def as_contiguous(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor with resolved conjugate and negative bits: the tensor itself, or a copy.

    torch may represent a conjugate by the memory of the original tensor and a flag.
    """
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.contiguous()


def flattened(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in one dimension: a view where it is contiguous, else a copy."""
    return as_contiguous(tensor).view(-1)


def separated(message: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a message of several tensors, each in memory of its own, in the shapes of these."""
    parts = torch.split(message, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).clone() for part, tensor in zip(parts, tensors, strict=True)]


def put_back(result: Tensor, tensor: Tensor) -> None:
    """Copy what `as_contiguous` or `flattened` returned to `tensor`, unless it is a view of it."""
    if result.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(result.view(tensor.shape))
